"""Dispatchers that come and go in good order while messages flow: partitions follow, and nothing is sent twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from outbox_core.models import Dispatch, FailedAttempt, Lease, Partition
from tests.chaos.feeder import Feeder
from tests.integration.relaying import (
    arrivals,
    bind,
    copies,
    known_ids,
    positions_by_key,
    settled,
)
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)

Spawn = Callable[..., Process]


def shares() -> list[int]:
    """How many partitions each dispatcher owns."""
    tokens = Lease.objects.values_list("token", flat=True)
    return sorted(Partition.objects.filter(lease=token).count() for token in tokens)


def owners() -> set[str]:
    return set(Partition.objects.exclude(lease=None).values_list("lease__name", flat=True))


def test_one_joins_and_one_leaves_while_messages_flow_and_each_is_sent_once(
    exchange: str, spawn: Spawn, wait_until: Any, scale: Any, outbox_settings: Any, pair: str
) -> None:
    outbox_settings(LEASE=5, HEARTBEAT=0.5, BATCH_SIZE=50, WINDOW=50)
    queue = bind(exchange)
    names = ["a", "b"] if pair == "real" else ["a"]  # SQLite has one writer
    first = [spawn("outbox_dispatch", "--name", name) for name in names]
    wait_until(lambda: owners() == set(names), 20)
    feeder = Feeder(pause=0.02)
    feeder.start()
    wait_until(Dispatch.objects.exists, 20)
    joining = spawn("outbox_dispatch", "--name", "joining")
    wait_until(lambda: Dispatch.objects.filter(worker="joining").count() > 100, 30)
    assert first[0].end(10) == 0
    left_at = Dispatch.objects.filter(worker="a").count()
    wait_until(lambda: feeder.published >= scale(5000), 120)
    count = feeder.stop()
    wait_until(settled, 60)
    found = arrivals(queue, count, 60)
    assert set(copies(found)) == known_ids()
    assert len(found) == Dispatch.objects.count() == count
    assert set(Dispatch.objects.values_list("worker", flat=True)) == {*names, "joining"}
    assert Dispatch.objects.filter(worker="a").count() == left_at
    assert {d.headers["outbox-attempt"] for d in found} == {1}
    assert not FailedAttempt.objects.exists()
    for positions in positions_by_key(found).values():
        assert positions == sorted(positions)
    assert joining.running


def test_partitions_are_shared_anew_within_two_heartbeats(
    exchange: str, spawn: Spawn, wait_until: Any, outbox_settings: Any, pair: str
) -> None:
    outbox_settings(LEASE=8, HEARTBEAT=2)
    bind(exchange)
    crew = [spawn("outbox_dispatch", "--name", "a")]
    wait_until(lambda: shares() == [64], 20)
    for joined in (2, 3) if pair == "real" else (2,):
        crew.append(spawn("outbox_dispatch", "--name", f"joined-{joined}"))
        wait_until(lambda n=joined: Lease.objects.count() == n, 20, every=0.01)
        began = time.monotonic()
        share = -(-64 // joined)
        wait_until(lambda share=share: max(shares()) <= share and sum(shares()) == 64, 6, every=0.02)
        assert time.monotonic() - began <= 2 * 2 + 0.5
    left = len(crew) - 1
    assert crew.pop().end(10) == 0
    began = time.monotonic()
    wait_until(lambda: len(shares()) == left and sum(shares()) == 64, 6, every=0.02)
    assert time.monotonic() - began <= 2 * 2 + 0.5
