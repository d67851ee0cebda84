"""The hot statements use the index that was made for them, whatever the planner believes of the tables.

Queue tables are analysed while they are empty, and then fill. So each statement is planned with statistics of the full
table and with statistics of the empty one; each time with the index named, and with a bound on the pages touched, since
with sequential scans switched off there always is some index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from outbox_core.clock import database_now
from outbox_core.models import Parked
from outbox_core.outbox import alarm, leases, queue, stranding
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.queue import START, Floor, Row
from outbox_core.outbox.settle import Settler
from outbox_core.sql import Dialect
from outbox_core.transports.base import Outcome
from tests.integration.plans import PARKED, PENDING, Plan, fill, plans, statistics

pytestmark = pytest.mark.django_db(transaction=True)

ROWS = 15_000  # on PostgreSQL; SQLite's plans do not depend on how many there are
EVERYWHERE = dict.fromkeys(range(64), START)


@pytest.fixture(params=["fresh", "empty"])
def filled(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """`filled(dict, dict...)`: fills the queue, and leaves the statistics as the test's parameter says."""
    if connection.vendor != "postgresql" and request.param == "empty":
        pytest.skip("SQLite names its index in each statement")
    with statistics(request.param) as done:

        def act(*groups: dict[str, Any]) -> None:
            start = 1
            for group in groups:
                share = group.pop("share", 1)
                count = int(ROWS * share) if connection.vendor == "postgresql" else 500
                fill(count, start=start, **group)
                start += count
            done()

        yield act


def only(found: list[Plan], part: str) -> Plan:
    """The one plan whose statement has `part` in it."""
    (plan,) = [p for p in found if part in p.statement]
    return plan


def check(plan: Plan, indexes: set[str], buffers: int) -> None:
    assert indexes <= plan.indexes, plan
    assert PENDING not in plan.scanned, plan
    assert plan.buffers <= buffers, (plan.buffers, plan)


def read(db: Dialect, floors: Any = EVERYWHERE, limit: int = 16) -> list[Row]:
    return queue.read(db, floors, range(5), database_now(), limit)


KEYS = {"key": "'k' || (n % 10000)"}
HOT = {"key": "'k7'"}
ASIDE = {"key": "'k' || (n % 100)", "available": "null"}


@pytest.mark.parametrize(
    "situation",
    [
        [{}], [KEYS], [HOT], [{**ASIDE, "share": 0.9}, {"share": 0.1}],
        [{"available": "later", "share": 0.9}, {"share": 0.1}],
    ],
    ids=["no keys", "10,000 keys", "one hot key", "behind 100 keys", "in back-off"],
)  # fmt: skip
def test_a_read_probes_the_index_of_what_is_ready(filled: Any, situation: list[dict[str, Any]]) -> None:
    filled(*[dict(group) for group in situation])
    # 64 partitions of up to 16 rows: a descent each, the rows, and two probes for each row that has a key.
    for plan in plans(read):
        check(plan, {"outbox_ready"}, 64 * 16 * 8)


def test_a_read_of_keyed_rows_probes_lane_and_holds(filled: Any) -> None:
    filled(dict(KEYS))
    for plan in plans(read):
        check(plan, {"outbox_ready", "outbox_lane", "outbox_holds"}, 64 * 16 * 8)


def test_a_read_begins_at_its_floor(filled: Any) -> None:
    filled({})
    floor = Floor(database_now() - timedelta(seconds=1), 0)
    for plan in plans(lambda db: read(db, dict.fromkeys(range(64), floor))):
        check(plan, {"outbox_ready"}, 64 * 4)


def test_a_look_reads_a_row_at_most(filled: Any) -> None:
    filled({"available": "later"})
    found = plans(lambda db: queue.due_in(db, EVERYWHERE))
    for plan in found:
        check(plan, {"outbox_ready"}, 64 * 4)


def test_followers_come_from_the_lane(filled: Any) -> None:
    filled(dict(KEYS))

    def follow(db: Dialect) -> None:
        heads = [row for row in read(db, limit=2) if row.key]
        assert len(heads) > 50
        queue.followers(db, heads, 4)

    found = [p for p in plans(follow) if "ready" not in " ".join(p.indexes)]
    for plan in found:
        check(plan, {"outbox_lane"}, 128 * 4 * 4)


def test_promoting_finds_the_first_of_each_key(filled: Any) -> None:
    filled(dict(ASIDE))
    (plan,) = plans(lambda db: queue.promote(db, [(n % 64, f"k{n}") for n in range(100)]))
    check(plan, {"outbox_lane", "outbox_holds"}, 100 * 40)


def test_setting_aside_and_stranding_go_by_the_primary_key(filled: Any) -> None:
    filled(dict(KEYS))
    for act in (queue.set_aside, stranding.strand):
        (plan,) = plans(lambda db, act=act: act(db, range(1, 101)))
        assert PENDING not in plan.scanned
        assert plan.buffers <= 100 * 50


def test_the_roads_of_what_is_stranded_are_skipped_through(filled: Any) -> None:
    filled({"share": 0.5}, {"share": 0.5, "available": "null", "stranded": True})
    (plan,) = plans(stranding.stranded_roads)
    check(plan, {"outbox_stranded"}, 40)


def test_taking_back_reads_what_it_takes(filled: Any) -> None:
    filled({"share": 0.5}, {"share": 0.5, "available": "null", "stranded": True})
    road = ("events", "shop.sold")
    found = plans(lambda db: stranding.unstrand(db, road, range(64), database_now(), 1))
    for plan in (p for p in found if "stranded" in p.statement and "UPDATE" not in p.statement):
        check(plan, {"outbox_stranded"}, 64 * 6)


def test_the_alarm_skips_from_key_to_key(filled: Any) -> None:
    filled(dict(ASIDE))
    found = plans(lambda db: alarm._scan(db, alarm.BEGINNING, 50))
    check(only(found, "RECURSIVE"), {"outbox_aside", "outbox_lane"}, 50 * 20)


def test_settling_touches_what_it_settles(filled: Any) -> None:
    filled({})

    def settle(db: Dialect) -> None:
        import random

        answers = [Answer(row, Outcome.CONFIRMED, database_now()) for row in read(db, limit=2)]
        assert len(answers) > 100
        Settler(db, "w", random.Random()).settle(answers)

    for plan in plans(settle):
        assert PENDING not in plan.scanned, plan
        assert plan.buffers <= 128 * 30, plan


def test_taking_over_counts_only_what_was_in_flight(filled: Any) -> None:
    filled({})
    for plan in plans(lambda db: leases.count_maybe_sent("default", range(1, 101), "w", "gone")):
        assert PENDING not in plan.scanned, plan
        assert plan.buffers <= 100 * 40, plan


def test_a_hold_is_found_by_its_key_among_many(filled: Any) -> None:
    """Not by a hash of all that is held."""
    many = 5_000 if connection.vendor == "postgresql" else 500
    with statistics("empty", PARKED):
        Parked.objects.bulk_create(
            (
                Parked(
                    message_id=-n, state="dead", partition=n % 64, key=f"h{n}", position=n, type="t",
                    destination="events", holds=True,
                )
                for n in range(many)
            ),
            batch_size=5000,
        )  # fmt: skip
        filled(dict(KEYS))
        for plan in plans(read):
            check(plan, {"outbox_ready", "outbox_holds"}, 64 * 16 * 8)
        (plan,) = plans(lambda db: queue.promote(db, [(n % 64, f"k{n}") for n in range(100)]))
        check(plan, {"outbox_lane", "outbox_holds"}, 100 * 40)
