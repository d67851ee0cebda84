"""The queue: what may go, what waits, and what a confirm or a failure changes. All hot SQL stands here.

Three partial indexes of `Pending` carry it. `outbox_ready` (partition, available_at, position) holds what has a time
to go, `outbox_lane` (partition, key, position) the order within a key, `outbox_aside` what was set aside since an
earlier one of its key must go first. `outbox_holds` of `Parked` holds the keys that wait behind a dead message.
A million rows that cannot go therefore cost a read nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import starmap
from typing import Any, NamedTuple

from outbox_core.models import Message, Parked, Pending
from outbox_core.outbox.outgoing import partition_of
from outbox_core.sql import Dialect, array, glance

__all__ = [
    "START", "Floor", "Row", "due_in", "followers", "next_position", "partition_of", "place", "promote", "read",
    "set_aside",
]  # fmt: skip

PENDING, PARKED = Pending._meta.db_table, Parked._meta.db_table


class Floor(NamedTuple):
    """Where reading of a partition begins: time alone would stick where many rows have the same."""

    available_at: datetime
    position: int


Road = tuple[str, str]
"""Destination and type: together exchange and routing key, which succeed or fail alike."""

Place = tuple[int, str]
"""A partition and a key: the lane that keyed messages wait in."""

START = Floor(datetime(1970, 1, 1, tzinfo=UTC), 0)


class Row(NamedTuple):
    """A Pending row as it was read. `free`: no earlier one of its key stands before it and none holds it."""

    id: int
    partition: int
    key: str
    position: int
    first_position: int | None
    attempts: int
    failures: int
    scheduled: bool
    direct: bool
    late: bool
    cause: str
    operation: int | None
    type: str
    destination: str
    available_at: datetime | None
    free: bool = True

    @property
    def road(self) -> Road:
        return self.destination, self.type

    @property
    def wire_position(self) -> int:
        """The position that goes along with every send of it: that of the first."""
        return self.position if self.first_position is None else self.first_position


_ROW = (
    "p.message, p.partition, p.key, p.position, p.first_position, p.attempts, p.failures, p.scheduled, p.direct, "
    "p.late, p.cause, p.operation, p.type, p.destination, p.available_at"
)


def held(row: str) -> str:
    """SQL: 1 if a dead message holds the key of `row`, else NULL. Index: `{holds}`.

    LIMIT keeps PostgreSQL from answering by a hash of all that is held: a probe each, whatever it believes of it.
    """
    return (
        f"(SELECT 1 FROM {PARKED} h {{holds}} WHERE h.partition = {row}.partition AND h.key = {row}.key AND h.holds "
        "LIMIT 1)"
    )


def first_in_lane(what: str, row: str, before: str = "") -> str:
    """SQL: `what` of `l`, the first row in the lane of the key of `row`, and `before` a position if one is named.
    Index: `{lane}`."""
    end = f"AND l.position < {before} " if before else ""
    return (
        f"(SELECT {what} FROM {PENDING} l {{lane}} WHERE l.partition = {row}.partition AND l.key = {row}.key "
        f"AND NOT (l.key = '') AND NOT l.scheduled {end}ORDER BY l.position LIMIT 1)"
    )


ASIDE = "l.available_at IS NULL AND NOT l.stranded"
"""SQL: whether `l` was set aside behind another of its key."""

_FREE = f"(p.key = '' OR ({first_in_lane('1', 'p', 'p.position')} IS NULL AND {held('p')} IS NULL))"

_READ_POSTGRESQL = f"""
SELECT {_ROW}, {_FREE.format(lane="", holds="")}
FROM unnest(%s::smallint[], %s::timestamptz[], %s::bigint[]) AS f(partition, available_at, position)
CROSS JOIN LATERAL (
    SELECT * FROM {PENDING}
    WHERE partition = f.partition AND available_at IS NOT NULL AND available_at <= %s
      AND (available_at, position) >= (f.available_at, f.position) AND message <> ALL(%s::bigint[])
    ORDER BY available_at, position LIMIT %s) p
ORDER BY p.available_at, p.position"""

_READ_SQLITE = f"""
SELECT {_ROW}, {_FREE.format(lane="INDEXED BY outbox_lane", holds="INDEXED BY outbox_holds")}
FROM {PENDING} p INDEXED BY outbox_ready
WHERE p.partition = %s AND p.available_at IS NOT NULL AND p.available_at <= %s
  AND (p.available_at, p.position) >= (%s, %s) AND p.message NOT IN (SELECT value FROM json_each(%s))
ORDER BY p.available_at, p.position LIMIT %s"""

_DUE_POSTGRESQL = f"""
SELECT 1 FROM unnest(%s::smallint[], %s::timestamptz[], %s::bigint[]) AS f(partition, available_at, position)
CROSS JOIN LATERAL (
    SELECT 1 FROM {PENDING}
    WHERE partition = f.partition AND available_at IS NOT NULL AND available_at <= %s
      AND (available_at, position) > (f.available_at, f.position)
    ORDER BY available_at, position LIMIT 1) p
LIMIT 1"""

_DUE_SQLITE = f"""
SELECT 1 FROM {PENDING} INDEXED BY outbox_ready
WHERE partition = %s AND available_at IS NOT NULL AND available_at <= %s
  AND (available_at, position) > (%s, %s) LIMIT 1"""

_FOLLOW_POSTGRESQL = f"""
SELECT {_ROW}
FROM unnest(%s::smallint[], %s::text[], %s::bigint[]) AS h(partition, key, position)
CROSS JOIN LATERAL (
    SELECT * FROM {PENDING} q
    WHERE q.partition = h.partition AND q.key = h.key AND NOT (q.key = '') AND NOT q.scheduled
      AND q.position > h.position
    ORDER BY q.position LIMIT %s) p
ORDER BY p.position"""

_FOLLOW_SQLITE = f"""
SELECT {_ROW} FROM {PENDING} p INDEXED BY outbox_lane
WHERE p.partition = %s AND p.key = %s AND NOT (p.key = '') AND NOT p.scheduled AND p.position > %s
ORDER BY p.position LIMIT %s"""


def read(
    db: Dialect, floors: Mapping[int, Floor], in_flight: Collection[int], now: datetime, limit: int
) -> list[Row]:
    """What is due in these partitions and not in flight, earliest first, up to `limit` per partition. Index: ready."""
    if not floors:
        return []
    if db.postgresql:
        rows = db.execute(_READ_POSTGRESQL, [*_columns(floors), now, array("bigint", in_flight), limit])
        return list(starmap(Row, rows))
    flying = db.among("", in_flight)[1]
    found = []
    for partition, floor in floors.items():
        found += db.execute(
            _READ_SQLITE,
            [
                partition,
                db.to_database(now),
                db.to_database(floor.available_at),
                floor.position,
                flying,
                limit,
            ],
        )
    return sorted((_from_sqlite(db, r) for r in found), key=lambda r: (r.available_at, r.position))


def followers(db: Dialect, heads: Sequence[Row], limit: int) -> list[Row]:
    """Up to `limit` rows behind each head in its key's lane, by position. Index: lane."""
    if not heads:
        return []
    if db.postgresql:
        columns = [
            array("smallint", (h.partition for h in heads)),
            [h.key for h in heads],
            array("bigint", (h.position for h in heads)),
        ]
        return list(starmap(Row, db.execute(_FOLLOW_POSTGRESQL, [*columns, limit])))
    found = []
    for h in heads:
        found += db.execute(_FOLLOW_SQLITE, [h.partition, h.key, h.position, limit])
    return sorted((_from_sqlite(db, r) for r in found), key=lambda r: r.position)


def _columns(floors: Mapping[int, Floor]) -> list[Any]:
    """The floors as PostgreSQL takes them: three arrays."""
    positions = (f.position for f in floors.values())
    return [
        array("smallint", floors),
        [f.available_at for f in floors.values()],
        array("bigint", positions),
    ]


def _from_sqlite(db: Dialect, row: tuple[Any, ...]) -> Row:
    """SQLite keeps truth as 0 and 1, and times without their zone."""
    fields = list(row)
    for i in (7, 8, 9, 15)[: len(row) - 12]:  # scheduled, direct, late, and free where it was asked for
        fields[i] = bool(fields[i])
    fields[14] = db.from_database(fields[14])
    return Row(*fields)


def due_in(db: Dialect, floors: Mapping[int, Floor]) -> bool:
    """Is anything due above the floors of these partitions? Writes nothing, and takes no lock. Index: ready."""
    now = db.now()
    with glance(db.using):
        if db.postgresql:
            return bool(db.execute(_DUE_POSTGRESQL, [*_columns(floors), now]))
        due = db.to_database(now)
        return any(
            db.execute(_DUE_SQLITE, [partition, due, db.to_database(floor.available_at), floor.position])
            for partition, floor in floors.items()
        )


def set_aside(db: Dialect, ids: Collection[int]) -> None:
    """Take rows that cannot go out of the way of reading; `promote` brings them back. Only the partition's owner
    does this, inside a turn, for keyed rows behind an earlier one of their key or behind a hold."""
    if ids:
        condition, among = db.among("message", sorted(ids))
        # No further condition: a partial index that it fits lets a planner that believes the table to be empty walk
        # through all of that index.
        db.execute(f"UPDATE {PENDING} SET available_at = NULL WHERE {condition}", [among])


def promote(using: str | Dialect, keys: Iterable[Place]) -> list[Place]:
    """For each (partition, key) that is not held: if the first row of its lane is set aside, it may go now. Returns
    those of which it was.

    Whatever removes a Pending row of a key, or ends a hold, ends with this in the same transaction; else a row stays
    set aside behind nothing. Indexes: lane, holds.
    """
    db = using if isinstance(using, Dialect) else Dialect(using)
    lanes = sorted({(partition, key) for partition, key in keys if key})
    if not lanes:
        return []
    table, parameters = db.table("k", {"partition": "smallint", "key": "text"}, lanes)
    # Found by primary key alone: a condition on available_at here lets a planner that believes the table to be empty
    # walk through everything that is set aside.
    first = first_in_lane(f"CASE WHEN {ASIDE} THEN l.message END", "k")
    firsts = f"SELECT {first} FROM {table} WHERE {held('k')} IS NULL".format(
        lane=db.index("outbox_lane"), holds=db.index("outbox_holds")
    )
    found = f"= ANY(ARRAY({firsts}))" if db.postgresql else f"IN ({firsts})"
    return db.execute(
        f"UPDATE {PENDING} SET available_at = %s WHERE message {found} RETURNING partition, key",
        [db.moment(db.now()), *parameters],
    )


def next_position(using: str | Dialect) -> int:
    """A new place at the end of every key: the next number of the sequence that message ids come from."""
    db = using if isinstance(using, Dialect) else Dialect(using)
    table = Message._meta.db_table
    if db.postgresql:
        return int(db.execute("SELECT nextval(pg_get_serial_sequence(%s, 'id'))", [table])[0][0])
    return int(
        db.execute("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = %s RETURNING seq", [table])[0][0]
    )


def place(db: Dialect, row: Row) -> None:
    """A delayed message has fallen due: it takes its place at the end of its key, and is read from there."""
    db.execute(
        f"UPDATE {PENDING} SET scheduled = {db.false}, position = %s WHERE message = %s AND scheduled",
        [next_position(db), row.id],
    )


def claim_direct(db: Dialect, rows: Sequence[Row]) -> list[Row]:
    """Direct messages whose producer had its time: it may have sent them, so one more attempt is opened.

    Returns those that are the caller's now. The producer settles without a lease: what it settles at this moment, or
    has settled since the read, is not among them.
    """
    if not rows:
        return []
    claimed = _no_longer_direct(db, [r.id for r in rows], "attempts = attempts + 1, cause = 'resend'")
    return [
        r._replace(direct=False, attempts=r.attempts + 1, cause="resend") for r in rows if r.id in claimed
    ]


def give_direct(db: Dialect, ids: Collection[int]) -> set[int]:
    """The producer gives up its direct messages before their grace is over: due now, for the dispatcher. Returns
    those that still were its own; they stay locked for the rest of the transaction. One that a dispatcher has
    stranded meanwhile, since its grace was over, is among them."""
    change = f"available_at = %s, stranded = {db.false}"
    return _no_longer_direct(db, ids, change, [db.moment(db.now())])


def _no_longer_direct(
    db: Dialect, ids: Collection[int], change: str, parameters: Sequence[Any] = ()
) -> set[int]:
    condition, among = db.among("message", sorted(ids))
    changed = db.execute(
        f"UPDATE {PENDING} SET direct = {db.false}, {change} WHERE message IN ("
        f"SELECT message FROM {PENDING} WHERE {condition} AND direct ORDER BY message "
        f"{db.lock('FOR UPDATE SKIP LOCKED')}) RETURNING message",
        [*parameters, among],
    )
    return {message for (message,) in changed}
