"""The locks of the receiving side. Everyone who may run a handler takes them, in this order: message, then key.

They are PostgreSQL's advisory transaction locks on a hash: they hold before any row exists, and end with the
transaction, whatever becomes of the process. A SQLite write transaction (BEGIN IMMEDIATE) excludes all others anyway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import datetime

from outbox_core.sql import Dialect, array


def take(using: str, consumer: str, message_id: str) -> datetime | None:
    """Lock a message for a consumer until the transaction ends. The database's time, or None if another has it.

    What stands in the tables may be read only after this: an earlier snapshot does not see the other's commit.
    """
    db = Dialect(using)
    if not db.postgresql:
        return db.now()
    statement = "SELECT pg_try_advisory_xact_lock(%s), clock_timestamp()"
    ((obtained, now),) = db.execute(statement, [_slot("message", consumer, message_id)])
    return now if obtained else None


def take_all(using: str, consumer: str, message_ids: Collection[str]) -> tuple[set[str], datetime]:
    """Lock those messages that no one else has, until the transaction ends; and the database's time. As with `take`,
    no one waits."""
    db = Dialect(using)
    if not db.postgresql:
        return set(message_ids), db.now()
    slots = {_slot("message", consumer, id_): id_ for id_ in message_ids}
    rows = db.execute(
        "SELECT slot, pg_try_advisory_xact_lock(slot), clock_timestamp() FROM unnest(%s::bigint[]) AS slot",
        [array("bigint", slots)],
    )
    return {slots[slot] for slot, obtained, _ in rows if obtained}, rows[-1][2]


def take_key(using: str, consumer: str, key: str) -> None:
    """Wait for the key of an ordered consumer, and hold it until the transaction ends. It is taken after the messages'
    own locks, which no one waits for, and several keys in their order: so no circle of waiting can form."""
    db = Dialect(using)
    if db.postgresql:
        db.execute("SELECT pg_advisory_xact_lock(%s)", [_slot("key", consumer, key)])


def _slot(*parts: str) -> int:
    name = "\0".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, person=b"outboard").digest(), signed=True)
