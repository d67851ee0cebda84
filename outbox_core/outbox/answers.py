"""What the broker answered for one row that was in flight."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from outbox_core.conf import settings
from outbox_core.outbox.queue import Row
from outbox_core.transports.base import Outcome, Result

NACKED = "Nacked"  # the one failure of the road for which the message had been written


@dataclass(frozen=True, slots=True)
class Answer:
    """What the broker answered for one row that was in flight. `committed_at` is when the message was published."""

    row: Row
    outcome: Outcome
    committed_at: datetime
    error: str = ""
    detail: str = ""
    twice: bool = False  # the transport had to send it a second time

    @classmethod
    def of(cls, result: Result) -> Answer:
        """What a publisher says of a message that `load` wrote."""
        row, committed_at = result.send.tag
        return cls(row, result.outcome, committed_at, result.error, result.detail, result.twice)

    @property
    def attempt(self) -> int:
        """The number of its send; where there were two, of the second."""
        return self.row.attempts + 1 + self.twice

    @property
    def sent(self) -> bool:
        """The broker took it (or returned it, where the settings accept that)."""
        return self.outcome is Outcome.CONFIRMED or (
            self.outcome is Outcome.RETURNED and settings.UNROUTABLE == "accept"
        )
