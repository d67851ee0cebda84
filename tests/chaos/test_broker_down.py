"""RabbitMQ stopped and started: what was published meanwhile is delivered with no further write; none of it fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from outbox_core.models import FailedAttempt, Parked, Pending, Worker
from tests.integration.relaying import (
    arrivals,
    bind,
    copies,
    first_copies,
    known_ids,
    positions_by_key,
    publish_numbered,
    settled,
)  # fmt: skip
from tests.private_servers import RabbitMQ
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)


def test_messages_published_while_the_broker_is_down_are_delivered_when_it_is_back(
    private_rabbitmq: RabbitMQ, exchange: str, spawn: Callable[..., Process], wait_until: Any
) -> None:
    queue = bind(exchange)
    spawn("outbox_dispatch", "--name", "relay")
    wait_until(lambda: Worker.objects.filter(name="relay", broker="connected").exists(), 20)
    private_rabbitmq.stop()
    publish_numbered(3)
    wait_until(lambda: Worker.objects.filter(name="relay").exclude(broker="connected").exists(), 20)
    assert Pending.objects.filter(failures=0).count() == 3
    private_rabbitmq.start()
    wait_until(settled, 30)
    found = arrivals(queue, 3)
    assert set(copies(found)) == known_ids()
    assert not Parked.objects.exists()
    assert not FailedAttempt.objects.exclude(kind="unknown").exists()


def test_a_broker_that_is_away_for_long_costs_no_message_a_failure(
    private_rabbitmq: RabbitMQ, exchange: str, spawn: Callable[..., Process], wait_until: Any, scale: Any,
    outbox_settings: Any,
) -> None:  # fmt: skip
    outbox_settings(MAX_ATTEMPTS=2, BACKOFF_BASE=0.2, BACKOFF_CAP=1)  # if one counted, it would soon be dead
    queue = bind(exchange)
    spawn("outbox_dispatch", "--name", "relay")
    wait_until(lambda: Worker.objects.filter(name="relay", broker="connected").exists(), 20)
    private_rabbitmq.stop()
    publish_numbered(1000, keys=50)
    time.sleep(max(5, scale(60)))
    assert not Parked.objects.exists()
    assert Pending.objects.filter(failures=0).count() == 1000
    private_rabbitmq.start()
    wait_until(settled, 60)
    found = arrivals(queue, 1000)
    assert set(copies(found)) == known_ids()
    for positions in positions_by_key(first_copies(found)).values():
        assert positions == sorted(positions)
    assert not Parked.objects.exists()
    assert not FailedAttempt.objects.exclude(kind="unknown").exists()


def test_a_broker_that_dies_with_messages_in_flight_gets_them_all_again(
    private_rabbitmq: RabbitMQ, exchange: str, spawn: Callable[..., Process], wait_until: Any, scale: Any
) -> None:
    count = max(1000, scale(5000))
    queue = bind(exchange)
    publish_numbered(count, keys=50, size=500)
    spawn("outbox_dispatch", "--name", "relay")
    wait_until(lambda: 0 < Pending.objects.count() < count, 30, every=0.005)
    private_rabbitmq.stop()
    private_rabbitmq.start()
    wait_until(settled, 60)
    found = arrivals(queue, count, 60)
    assert set(copies(found)) == known_ids()
    assert not Parked.objects.exists()
    assert not FailedAttempt.objects.exclude(kind__in=["unknown", "transient"]).exists()
    assert not FailedAttempt.objects.filter(kind="permanent").exists()
