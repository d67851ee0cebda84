"""Rows that wait for their destination: set aside in the queue, found by road. See `circuits.py` for when and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from outbox_core.outbox.queue import PENDING, Road
from outbox_core.sql import Dialect, array

_OF_A_ROAD = f"""
SELECT message FROM {PENDING} {{index}}
WHERE destination = %s AND type = %s AND partition = {{partition}} AND stranded ORDER BY position LIMIT %s"""

_OF_PARTITIONS = f"""
SELECT p.message FROM unnest(%s::smallint[]) AS f(partition)
CROSS JOIN LATERAL ({_OF_A_ROAD.format(index="", partition="f.partition")}) p LIMIT %s"""

_FIRST = f"SELECT q.message FROM {PENDING} q {{index}} WHERE q.stranded{{after}} ORDER BY q.destination, q.type LIMIT 1"


def strand(db: Dialect, ids: Collection[int]) -> None:
    """Set aside rows whose destination fails, until `unstrand`. Only the partition's owner does this, in a turn."""
    if ids:
        condition, among = db.among("message", sorted(ids))
        db.execute(
            f"UPDATE {PENDING} SET available_at = NULL, stranded = {db.true} WHERE {condition}", [among]
        )


def unstrand(db: Dialect, road: Road, partitions: Sequence[int], now: datetime, limit: int) -> list[int]:
    """Let up to `limit` stranded rows of a road go again, due since `now`, the first ones of each partition. Only
    their owner does this, in a turn. Index: stranded."""
    found: list[tuple[int]] = []
    if db.postgresql:
        found += db.execute(_OF_PARTITIONS, [array("smallint", partitions), *road, limit, limit])
    else:
        statement = _OF_A_ROAD.format(index=db.index("outbox_stranded"), partition="%s")
        for partition in partitions:
            if (room := limit - len(found)) > 0:
                found += db.execute(statement, [*road, partition, room])
    if not found:
        return []
    condition, among = db.among("message", sorted(message for (message,) in found))
    changed = db.execute(
        f"UPDATE {PENDING} SET available_at = %s, stranded = {db.false} WHERE {condition} AND stranded "
        "RETURNING message",
        [db.moment(now), among],
    )
    return [message for (message,) in changed]


def stranded_roads(db: Dialect, limit: int = 1000) -> list[Road]:
    """The roads of which anything is stranded, whoever owns it: one probe of the index each. Index: stranded."""
    index = db.index("outbox_stranded")
    first = _FIRST.format(index=index, after="")
    next_ = _FIRST.format(index=index, after=" AND (q.destination, q.type) > (r.destination, r.type)")
    rows = db.execute(
        f"""
        WITH RECURSIVE roads(destination, type) AS (
            SELECT p.destination, p.type FROM {PENDING} p WHERE p.message = ({first})
            UNION ALL
            SELECT p.destination, p.type FROM roads r JOIN {PENDING} p ON p.message = ({next_}))
        SELECT destination, type FROM roads LIMIT %s
        """,
        [limit],
    )
    return [(destination, type) for destination, type in rows]
