"""Receipts as rows: written for every message, so without the cost of a model's `save()`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from outbox_core.models import Receipt
from outbox_core.sql import Dialect


class NewReceipt(NamedTuple):
    """A consumer's record that it is done with a message: the columns of Receipt of these names."""

    consumer: str
    message_id: str
    received_at: datetime
    outcome: str
    digest: str
    attempt: int
    position: int | None


def insert(using: str, receipts: Sequence[NewReceipt]) -> None:
    """Write them in the caller's transaction, which holds the lock of each. Raises IntegrityError if one is there."""
    db = Dialect(using)
    row = f"({', '.join(['%s'] * len(NewReceipt._fields))})"
    values = [r._replace(received_at=db.moment(r.received_at)) for r in receipts]
    db.execute(
        f"INSERT INTO {Receipt._meta.db_table} ({', '.join(NewReceipt._fields)}) "
        f"VALUES {', '.join([row] * len(values))}",
        [column for value in values for column in value],
    )
