"""The alarm: a row that is set aside behind nothing would wait for ever. It should never be found; if it is, it is
promoted, and the error in the log is worth a look.

A paced scan, some keys at a time: it skips from key to key in the index of what is set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from outbox_core.outbox import leases
from outbox_core.outbox.queue import ASIDE, PENDING, Place, first_in_lane, held, promote
from outbox_core.sql import Dialect, exclusive, glance

log = logging.getLogger("outbox.alarm")

EVERY = 10.0  # seconds between two looks
KEYS = 1000  # that one look goes through

BEGINNING: Place = (-1, "")

_NEXT = f"""SELECT q.message FROM {PENDING} q {{aside}}
            WHERE q.available_at IS NULL AND (q.partition, q.key) > ({{after}})
            ORDER BY q.partition, q.key, q.position LIMIT 1"""

_SCAN = f"""
WITH RECURSIVE keys(partition, key) AS (
    SELECT p.partition, p.key FROM {PENDING} p WHERE p.message = ({_NEXT.format(aside="{aside}", after="%s, %s")})
    UNION ALL
    SELECT p.partition, p.key FROM keys k JOIN {PENDING} p
    ON p.message = ({_NEXT.format(aside="{aside}", after="k.partition, k.key")}))
SELECT k.partition, k.key, {first_in_lane(ASIDE, "k")} AND {held("k")} IS NULL
FROM (SELECT partition, key FROM keys LIMIT %s) k"""


class Alarm:
    """One dispatcher's scan: it goes on where the last look ended, and begins again at the end."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._after = BEGINNING

    def look(self, token: int, mine: Collection[int]) -> int:
        """Go through some keys; promote what waits behind nothing in the partitions `mine`, of the lease `token`.

        Commits if there is any; returns how many keys. Raises leases.Fenced.
        """
        suspects, self._after = behind_nothing(self.using, self._after)
        suspects = [place for place in suspects if place[0] in mine]
        if not suspects:
            return 0
        with exclusive(self.using, hot=True) as db:
            leases.lock_own(db, token)
            found = promote(db, suspects)  # it looks again: no one else moves rows of these partitions now
        for partition, key in found:
            log.error(
                'The first message of key "%s" (partition %s) was set aside behind nothing; it goes now',
                key, partition, extra={"action": "alarm"},
            )  # fmt: skip
        return len(found)


def behind_nothing(using: str, after: Place = BEGINNING, limit: int = KEYS) -> tuple[list[Place], Place]:
    """Of up to `limit` keys after `after`: those whose first row is set aside though nothing is before it, and the
    place to go on from (BEGINNING if that was all). Takes no lock. Indexes: aside, lane, holds."""
    with glance(using) as db:
        rows = _scan(db, after, limit)
    found = [(partition, key) for partition, key, alone in rows if alone]
    return found, (rows[-1][0], rows[-1][1]) if len(rows) == limit else BEGINNING


def _scan(db: Dialect, after: Place, limit: int) -> list[tuple[int, str, bool]]:
    indexes = {name: db.index(f"outbox_{name}") for name in ("aside", "lane", "holds")}
    return [(p, k, bool(alone)) for p, k, alone in db.execute(_SCAN.format(**indexes), [*after, limit])]
