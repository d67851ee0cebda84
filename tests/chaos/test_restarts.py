"""Dispatchers that start together, are restarted, share a name, or stand still: each message goes once, in order."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from outbox_core import publish
from outbox_core.inbox.outcomes import Outcome as Handled
from outbox_core.models import Dispatch, FailedAttempt, Message, Partition, Pending, Worker
from outbox_core.outbox.queue import partition_of
from tests.chaos.mischief import freeze
from tests.integration.receiving import delivery, subscribed, take
from tests.integration.relaying import (
    alone,
    arrivals,
    bind,
    copies,
    first_copies,
    known_ids,
    positions_by_key,
    publish_numbered,
    settled,
)
from tests.processes import Process, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Spawn = Callable[..., Process]
Scale = Callable[[int], int]


def test_two_that_start_at_once_send_each_message_once(exchange: str, spawn: Spawn, scale: Scale) -> None:
    queue = bind(exchange)
    for _ in range(scale(50)):
        publish_numbered(200)
        both = [spawn("outbox_dispatch", "--once") for _ in range(2)]
        assert [process.wait(60) for process in both] == [0, 0]
        assert settled()
    found = copies(arrivals(queue, 200 * scale(50)))
    assert set(found) == known_ids()
    assert set(found.values()) == {1}


def test_restarts_in_the_middle_of_batches_send_nothing_again(
    exchange: str, spawn: Spawn, scale: Scale, outbox_settings: Any
) -> None:
    outbox_settings(BATCH_SIZE=50, WINDOW=50)
    queue = bind(exchange)
    publish_numbered(scale(5000))
    assert spawn("outbox_dispatch", "--once").wait(120) == 0
    dispatched = Dispatch.objects.count()
    assert dispatched == scale(5000)
    publish_numbered(max(1000, scale(2000)), keys=20)
    for _ in range(5):
        process = spawn("outbox_dispatch")
        wait_until(lambda before=dispatched: Dispatch.objects.count() > before or settled(), 30, 0.01)
        assert process.end(10) == 0
        assert alone()
        assert Dispatch.objects.count() >= dispatched
        dispatched = Dispatch.objects.count()
    assert spawn("outbox_dispatch", "--once").wait(120) == 0
    found = copies(arrivals(queue, Message.objects.count(), 60))
    assert set(found) == known_ids()
    assert set(found.values()) == {1}
    assert Dispatch.objects.count() == Message.objects.count()


@pytest.mark.parametrize("forgotten", [False, True], ids=["same name", "no record of it"])
def test_a_successor_of_the_same_name_is_another_dispatcher(
    exchange: str, spawn: Spawn, outbox_settings: Any, forgotten: bool
) -> None:
    outbox_settings(LEASE=2, HEARTBEAT=0.4)
    queue = bind(exchange)
    publish_numbered(200, keys=20)
    crash = {"OUTBOX_CRASH_AT": "published", "OUTBOX_ALLOW_CRASH": "1"}
    assert spawn("outbox_dispatch", "--name", "web-1", env=crash).wait(30) == -signal.SIGKILL
    if forgotten:
        Worker.objects.all().delete()
    spawn("outbox_dispatch", "--name", "web-1")
    wait_until(settled, 20)
    found = arrivals(queue, 200)
    assert set(copies(found)) == known_ids()
    assert FailedAttempt.objects.filter(kind="unknown", worker="web-1").exists()
    assert not FailedAttempt.objects.exclude(kind="unknown").exists()


def test_one_that_stands_still_delays_its_own_keys_alone(
    exchange: str, spawn: Spawn, outbox_settings: Any
) -> None:
    outbox_settings(LEASE=4, HEARTBEAT=0.4)
    queue = bind(exchange)
    still = spawn("outbox_dispatch", "--name", "still")
    spawn("outbox_dispatch", "--name", "other")
    wait_until(lambda: owned_by("still") == owned_by("other") == 32, 20)
    freeze(still)
    owners = dict(Partition.objects.values_list("number", "lease__name"))
    keys = {owners[partition_of(f"key-{n}", "")]: f"key-{n}" for n in range(200)}
    with transaction.atomic():
        for n in range(10):
            publish("shop.sold", {"n": n}, key=keys["still"])
            publish("shop.sold", {"n": n}, key=keys["other"])
    wait_until(lambda: not Pending.objects.filter(key=keys["other"]).exists(), 3)
    assert Pending.objects.filter(key=keys["still"]).count() == 10
    wait_until(settled, 15)
    still.cont()
    for positions in positions_by_key(first_copies(arrivals(queue, 20))).values():
        assert positions == sorted(positions)


def owned_by(name: str) -> int:
    return Partition.objects.filter(lease__name=name).count()


def test_a_handler_that_publishes_very_many_publishes_each_once(
    exchange: str, spawn: Spawn, scale: Scale, outbox_settings: Any
) -> None:
    outbox_settings(LEASE=2, HEARTBEAT=0.4)
    many = scale(30_000)
    queue = bind(exchange, "letter.#")

    def fan_out(message: Any) -> None:
        for n in range(many):
            publish("letter.written", {"n": n})

    with subscribed(fan_out) as subscription:
        assert take(subscription, delivery(message_id="one")) is Handled.HANDLED
        crash = {"OUTBOX_CRASH_AT": "published:3", "OUTBOX_ALLOW_CRASH": "1"}
        assert spawn("outbox_dispatch", env=crash).wait(60) == -signal.SIGKILL
        again = delivery(message_id="one", redelivered=True)
        assert take(subscription, again) is Handled.DUPLICATE
        assert Message.objects.filter(type="letter.written").count() == many
        spawn("outbox_dispatch")
        wait_until(settled, 120)
        assert take(subscription, again) is Handled.DUPLICATE
    found = arrivals(queue, many, 60)
    assert set(copies(found)) == known_ids()
    assert len({d.body for d in found}) == many
