"""RabbitMQ stopped and started: what was published meanwhile is delivered with no further write; none of it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbox_core.models import FailedAttempt, Parked, Pending, Worker
from tests.integration.relaying import arrivals, bind, copies, known_ids, publish_numbered, settled
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
