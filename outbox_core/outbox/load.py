"""From rows of the queue to messages for the broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from outbox_core.envelope import Stored, write
from outbox_core.models import Message
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.queue import Row
from outbox_core.sql import Dialect
from outbox_core.transports.base import Outcome, Send

_NAMES = ", ".join(name.removesuffix("_text") for name in Stored._fields)
_COLUMNS = {
    False: _NAMES,
    True: _NAMES.replace("message_id", "message_id::text").replace("headers", "headers::text"),
}  # by Dialect.postgresql


def load(using: str, lanes: Sequence[Sequence[Row]]) -> tuple[list[list[Send]], list[Answer]]:
    """Read the messages of the lanes and write them for the broker, as `write_lanes` does."""
    db = Dialect(using)
    condition, ids = db.among("id", (row.id for lane in lanes for row in lane))
    rows = db.execute(
        f"SELECT id, {_COLUMNS[db.postgresql]} FROM {Message._meta.db_table} WHERE {condition}", [ids]
    )
    stored = map(Stored._make, (columns[1:] for columns in rows))
    if not db.postgresql:
        stored = map(partial(_from_sqlite, db), stored)
    return write_lanes(lanes, dict(zip((columns[0] for columns in rows), stored, strict=True)))


def _from_sqlite(db: Dialect, stored: Stored) -> Stored:
    """SQLite keeps an id as 32 digits, truth as 0 and 1, and times without their zone."""
    return stored._replace(
        message_id=str(UUID(stored.message_id)),
        mandatory=bool(stored.mandatory),
        created_at=db.from_database(stored.created_at),
    )


def write_lanes(
    lanes: Sequence[Sequence[Row]], messages: Mapping[int, Message | Stored]
) -> tuple[list[list[Send]], list[Answer]]:
    """The lanes as messages, and an answer for each row that cannot become one (the rest of its lane is unsent)."""
    loaded, broken = [], []
    for lane in lanes:
        sends: list[Send] = []
        for i, row in enumerate(lane):
            try:
                sends.append(_send(row, messages[row.id]))
            except Exception as error:  # one damaged row may not stop the relay
                broken.append(_broken(row, error))
                broken += [unsent(r) for r in lane[i + 1 :]]
                break
        if sends:
            loaded.append(sends)
    return loaded, broken


def unsent(row: Row) -> Answer:
    """The answer for a row that was never handed to the broker."""
    return Answer(row, Outcome.UNSENT, datetime.now(UTC))


def _send(row: Row, message: Message | Stored) -> Send:
    return write(
        message, (row, message.created_at), attempt=row.attempts + 1, position=row.wire_position, late=row.late,
        operation=row.operation,
    )  # fmt: skip


def _broken(row: Row, error: Exception) -> Answer:
    missing = isinstance(error, KeyError)
    detail = "its Message row is gone" if missing else f"cannot be written as a message: {error!r}"
    name = "MessageMissing" if missing else type(error).__name__
    return Answer(row, Outcome.INVALID, datetime.now(UTC), name, detail)
