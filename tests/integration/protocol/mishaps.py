"""What goes wrong inside a turn: a crash point, a statement that fails, a COMMIT of which the reply is lost."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.db import OperationalError

from outbox_core import crash
from outbox_core.clock import database_now
from outbox_core.models import Lease
from outbox_core.outbox import leases
from outbox_core.outbox.turn import Turn

CHANCES = {
    "": 90, "statement": 2, "reply": 3, "reply and lease": 1, "read": 0.5, "marked": 0.5, "confirmed": 0.5,
    "settled": 0.5,
}  # fmt: skip


class Killed(BaseException):
    """SIGKILL at a crash point."""


def long_ago() -> datetime:
    """A moment at which a lease is over."""
    return database_now() - timedelta(seconds=1)


class Mishaps:
    """`arm()` before a turn, `disarm()` after it; between the two, one thing may go wrong."""

    def __init__(self, rng: random.Random, counts: Counter[str], monkeypatch: Any) -> None:
        self.rng, self.counts, self._armed = rng, counts, ""
        self._commit, self._renew = Turn.commit, leases.renew

        def commit(turn: Turn, *arguments: Any) -> None:
            self._committing(turn, *arguments)

        monkeypatch.setattr(Turn, "commit", commit)
        monkeypatch.setattr(leases, "renew", self._renewing)
        monkeypatch.setattr(crash, "point", self._point)

    def arm(self) -> None:
        self._armed = self.rng.choices([*CHANCES], [*CHANCES.values()])[0]

    def disarm(self) -> None:
        self._armed = ""

    def _committing(self, turn: Turn, *arguments: Any) -> None:
        self._commit(turn, *arguments)
        if not self._armed.startswith("reply"):
            return
        if self._armed == "reply and lease":
            Lease.objects.filter(token=turn.memory.token).update(until=long_ago())
            while leases.take_over("default", 0):
                self.counts["takeovers"] += 1
        self.disarm()
        self.counts["lost replies"] += 1
        raise OperationalError("the reply to COMMIT was lost")

    def _renewing(self, *arguments: Any) -> None:
        if self._armed == "statement":
            self.disarm()
            raise OperationalError("the session ended in the turn")
        self._renew(*arguments)

    def _point(self, name: str) -> None:
        if self._armed == name:
            self.disarm()
            raise Killed
