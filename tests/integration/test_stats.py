"""The numbers: exact, capped, and from the tallies."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from outbox_core import tallies
from outbox_core.clock import ClockTimestamp, database_now
from outbox_core.models import Duplicate, Message, Pending, Worker
from outbox_core.operations import stats
from outbox_core.operations.verbs import act
from outbox_core.tallies import Count
from tests.integration.situations import ANA, aside, dead, dispatched, pending, retrying

pytestmark = pytest.mark.django_db(transaction=True)
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def make_old(message: Message, seconds: float) -> None:
    """Due for so long. (created_at of a Message can't be changed: a trigger refuses it.)"""
    Pending.objects.filter(pk=message.pk).update(available_at=database_now() - timedelta(seconds=seconds))


def test_an_empty_outbox_has_zeros_and_no_workers() -> None:
    assert stats.status() == {
        "pending": 0, "retrying": 0, "dead": 0, "marked": 0, "discarded": 0, "scheduled": 0, "dispatched": 0,
        "duplicates": 0, "consumers_retrying": 0, "consumers_dead": 0, "oldest_pending_seconds": 0.0, "workers": [],
    }  # fmt: skip


def test_every_state_is_counted_exactly() -> None:
    pending(), pending(), pending(delay=600), retrying(), dead(), dispatched()
    for verb in ("mark", "discard", "discard"):
        act(verb, pending().message_id, actor=ANA, reason="r")
    tallies.add(
        "default",
        "a",
        Counter({Count("events", "dispatched", 3): 40, Count("events", "dispatched", 5): 2}),
        NOON,
    )
    tallies.add("default", "b", Counter({Count("basket", "duplicate"): 3}), NOON)
    Duplicate.objects.create(message_id="x", cause="producer", same_payload=True, digest="d")
    status = stats.status()
    assert {k: status[k] for k in ("pending", "retrying", "scheduled", "dead", "marked", "discarded")} == {
        "pending": 3, "retrying": 1, "scheduled": 1, "dead": 1, "marked": 1, "discarded": 2,
    }  # fmt: skip
    assert (status["dispatched"], status["duplicates"]) == (42, 4)


def test_age_counts_from_the_due_time() -> None:
    pending(delay=3600)
    retrying(wait=600)
    assert stats.status()["oldest_pending_seconds"] == 0.0 == stats.oldest_pending()
    make_old(pending(), 90)
    assert 90 <= stats.status()["oldest_pending_seconds"] < 100
    assert 90 <= stats.oldest_pending() < 100


def test_what_is_set_aside_is_as_old_as_its_message_or_its_act() -> None:
    aside("k")
    assert 0 < stats.status()["oldest_pending_seconds"] < 30
    assert stats.oldest_pending() == pytest.approx(stats.status()["oldest_pending_seconds"], abs=5)
    Pending.objects.all().delete()
    message = dispatched(key="k")
    act("redispatch", message.message_id, actor=ANA, reason="r")
    Pending.objects.update(available_at=None)
    since = stats.oldest_aside("default")
    assert since is not None and since > message.created_at
    # A delayed one that fell due and drew its place a moment ago is not as old as its commit.
    Pending.objects.all().delete()
    delayed = aside("k")
    Pending.objects.filter(pk=delayed.pk).update(position=10**9)
    assert stats.oldest_aside("default") is None


def test_workers_are_listed_with_the_age_of_their_heartbeat() -> None:
    Worker.objects.create(
        kind="dispatcher", name="a", host="h", pid=7, version="1", partitions=32, rate=12.345, broker="connected",
        wakeup="notify", heartbeat=database_now() - timedelta(seconds=9),
    )  # fmt: skip
    (worker,) = stats.status()["workers"]
    assert 9 <= worker.pop("heartbeat_age_seconds") < 12
    assert worker == {
        "kind": "dispatcher", "name": "a", "host": "h", "pid": 7, "version": "1", "partitions": 32, "rate": 12.3,
        "broker": "connected", "wakeup": "notify", "silent": False,
    }  # fmt: skip


def test_pages_count_up_to_a_cap() -> None:
    for _ in range(7):
        pending()
    retrying(), dead(), dispatched()
    assert stats.counts(cap=5) == {
        "pending": 6, "retrying": 1, "scheduled": 0, "dead": 1, "marked": 0, "discarded": 0, "dispatched": 1,
        "duplicates": 0, "all": 6,
    }  # fmt: skip
    assert stats.counts()["pending"] == 7


def test_a_page_never_counts_a_whole_table() -> None:
    with CaptureQueriesContext(connection) as queries:
        stats.counts()
    for query in queries:
        assert "COUNT" not in query["sql"] or "LIMIT" in query["sql"], query["sql"]


def test_a_series_has_every_step_and_sums_what_falls_into_it() -> None:
    for minute, n in ((0, 1), (1, 2), (6, 4), (14, 8), (15, 99)):
        at = NOON + timedelta(minutes=minute)
        tallies.add("default", "a", Counter({Count("events", "dispatched", 1): n}), at)
        tallies.add("default", "b", Counter({Count("events", "failed"): 1}), at)
    points = stats.series(
        "default", ("dispatched", "failed"), NOON, NOON + timedelta(minutes=14), timedelta(minutes=5)
    )
    assert [p.at for p in points] == [NOON + timedelta(minutes=m) for m in (0, 5, 10)]
    assert [p.counts for p in points] == [
        {"dispatched": 3, "failed": 2}, {"dispatched": 4, "failed": 1}, {"dispatched": 8, "failed": 1},
    ]  # fmt: skip
    assert stats.sums("default", ("dispatched", "dead")) == {"dispatched": 114, "dead": 0}
    since = NOON + timedelta(minutes=10)
    assert stats.sums("default", ("dispatched",), since) == {"dispatched": 107}
    assert stats.by_destination("default", ("dispatched",), since) == {"events": {"dispatched": 107}}


def test_latency_is_a_quantile_of_the_histogram() -> None:
    counts = Counter(
        {Count("e", "dispatched", 3): 90, Count("e", "dispatched", 10): 10, Count("e", "dispatched"): 500}
    )
    tallies.add("default", "a", counts, NOON)
    assert stats.latency("default", "dispatched", 0.5, NOON) == 0.008
    assert stats.latency("default", "dispatched", 0.95, NOON) == 1.024
    assert stats.latency("default", "handled", 0.5, NOON) is None


def test_the_heartbeat_is_judged_by_the_database_clock() -> None:
    Worker.objects.create(kind="consumer", name="a", host="h", pid=7, version="1", heartbeat=ClockTimestamp())
    assert stats.workers()[0]["heartbeat_age_seconds"] < 10
