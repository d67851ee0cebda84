"""Messages as rows of a list, as JSON, and which acts each allows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboard import at_consumers, explain
from dashboard.acts import TITLES, choices
from outbox_core.models import Message
from outbox_core.operations import inspect
from outbox_core.operations.inspect import ConsumerState, Standing


@dataclass(frozen=True, slots=True)
class Row:
    """A message with where it stands, as a list shows it. `left`: it no longer matches the list that it stands in."""

    message: Message
    standing: Standing
    brief: str
    unfinished: ConsumerState | None = None  # at this consumer, though it was dispatched
    left: bool = False

    @property
    def id(self) -> str:
        """Its element's id; every row on a page has its own."""
        return f"message-{self.message.pk}"

    @property
    def seen(self) -> str:
        """What a page tells that it shows: it is drawn anew when this has changed."""
        at = self.unfinished
        if at is None:
            return self.standing.version
        # Short: the browser names all its rows in one address.
        return f"{self.standing.version}.{zlib.crc32(f'{at.consumer} {at.state} {at.attempts}'.encode()):x}"

    @property
    def level(self) -> str:
        """Of what its cell says."""
        return at_consumers.level(self.unfinished)

    @property
    def attempts(self) -> int:
        s = self.standing
        if s.pending:
            return s.pending.attempts
        if s.parked:
            return s.parked.attempts
        return s.last_dispatch.attempt if s.last_dispatch else 0

    @property
    def failures(self) -> int:
        row = self.standing.pending or self.standing.parked
        return row.failures if row else 0

    @property
    def since(self) -> datetime:
        """Its age counts from its commit; that of a delayed message from when it falls due."""
        pending = self.standing.pending
        return (
            pending.available_at
            if pending and pending.scheduled and pending.available_at
            else self.message.created_at
        )

    @property
    def verb(self) -> str:
        """The act that stands in the row: what sends the message once more, if it can be done now."""
        return next(
            (c.verb for c in choices(self.standing) if c.verb in ("retry", "redispatch") and not c.refused),
            "",
        )

    @property
    def title(self) -> str:
        """What its button says."""
        return str(TITLES[self.verb]) if self.verb else ""


def rows(messages: Iterable[Message], now: datetime, using: str, state: str = "") -> list[Row]:
    """A row for each message; `state` is that of the list, so that a row which left it shows."""
    messages = list(messages)
    standings = inspect.standings(messages, using)
    sent = (
        str(m.message_id) for m in messages if m.pk in standings and standings[m.pk].state == "dispatched"
    )
    open_ = inspect.unfinished(sent, using)
    return [
        Row(m, s, explain.brief(m, s, now, at), at, left=bool(state) and s.state != state)
        for m in messages
        for s, at in [(standings[m.pk], open_.get(str(m.message_id)))]
    ]  # fmt: skip


def as_json(row: Row, now: datetime) -> dict[str, Any]:
    """A message as the JSON lists have it."""
    message, standing = row.message, row.standing
    return {
        "message_id": message.message_id,
        "type": message.type,
        "key": message.key,
        "state": standing.state,
        "destination": message.destination,
        "attempts": row.attempts,
        "failures": row.failures,
        "created_at": message.created_at,
        "age_seconds": max(0.0, round((now - row.since).total_seconds(), 3)),
        "why": explain.why(message, standing, now, consumers=[row.unfinished] if row.unfinished else ()).text,
        "last_error": explain.last_error(standing),
        "version": standing.version,
    }
