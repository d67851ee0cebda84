"""The relay, from a committed queue to the confirms of RabbitMQ, against pika by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from outbox_core import Outgoing, publish_many
from outbox_core import publish as publish_one
from outbox_core.envelope import write
from outbox_core.models import Dispatch, Message, Pending
from outbox_core.transports import transport
from outbox_core.transports.base import Queue, Send
from tests.benchmarks import bare
from tests.benchmarks.conftest import Board
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = int(os.environ.get("BENCH_MESSAGES", "20000"))
FEW = max(50, MESSAGES // 20)  # for what takes long
BODY = {"text": "x" * 480}  # about 500 bytes


@pytest.fixture(autouse=True)
def _real(pair: str, board: Board) -> None:
    if pair != "real":
        board.note("the relay against bare pika: it needs PostgreSQL and RabbitMQ (PAIR=real)")
        pytest.skip("needs PostgreSQL and RabbitMQ")


@pytest.fixture
def queue(exchange: str, amqp: str) -> Iterator[Callable[[], int]]:
    """A bound, durable queue. Called, it tells how many messages it holds, and empties it."""
    name = f"{exchange}-bench"
    assert transport().apply_topology([Queue(name, ("#",))]) == []
    with pika.BlockingConnection(pika.URLParameters(amqp)) as connection:
        channel = connection.channel()

        def empty() -> int:
            connection.process_data_events()
            return int(channel.queue_purge(name).method.message_count)

        yield empty
        channel.queue_delete(name)


def publish(count: int, keys: int = 0) -> None:
    with transaction.atomic():
        publish_many(Outgoing("bench.made", BODY, key=f"k{n % keys}" if keys else "") for n in range(count))


def relay(queue: Callable[[], int], count: int, keys: int = 0) -> float:
    """Messages per second of a dispatcher that was idle, from the commit until all are settled."""
    before = Dispatch.objects.count()
    publish(count, keys)
    began = time.perf_counter()
    wait_until(lambda: not Pending.objects.exists(), 300, 0.01)
    seconds = time.perf_counter() - began
    sent = Dispatch.objects.count() - before
    assert sent == count
    assert queue() == sent, "the queue's depth is the number of sends that were recorded"
    return count / seconds


def sends(count: int) -> list[Send]:
    """Messages as ours go out."""
    publish(count)
    messages = Message.objects.order_by("-pk")[:count]
    made = [write(m, None, attempt=1, position=m.pk) for m in messages]
    Pending.objects.all().delete()
    return made


@pytest.fixture
def dispatcher(spawn: Any, queue: Callable[[], int]) -> None:
    spawn("outbox_dispatch")
    relay(queue, 100)  # it has joined, and owns every partition


def test_the_relay_against_pika_by_itself(
    board: Board, amqp: str, queue: Callable[[], int], spawn: Any
) -> None:
    made = sends(MESSAGES)
    spawn("outbox_dispatch")
    relay(queue, 100)

    def bare_pika(headers: bool) -> float:
        rate = bare.pipelined(amqp, made, headers=headers)
        wait_until(lambda: queue() == 0, 30)
        return rate

    def ours() -> float:
        return relay(queue, MESSAGES)

    board.compare(
        "relay / bare pika, same properties and headers", ours, lambda: bare_pika(True), "msg/s", wanted=">= 0.5",
        messages=MESSAGES,
    )  # fmt: skip
    board.compare(
        "relay / bare pika, no properties", ours, lambda: bare_pika(False), "msg/s", messages=MESSAGES
    )


def test_the_relay_against_one_confirm_and_one_update_each(
    board: Board, amqp: str, queue: Callable[[], int], spawn: Any
) -> None:
    made = sends(FEW)
    spawn("outbox_dispatch")
    relay(queue, 100)

    def simple() -> float:
        rate = bare.one_by_one(amqp, made)
        queue()
        return rate

    board.compare(
        "relay / one confirm and one UPDATE per message", lambda: relay(queue, MESSAGES), simple, "msg/s",
        wanted=">= 5", messages=MESSAGES,
    )  # fmt: skip


def test_keys_cost_little(board: Board, queue: Callable[[], int], dispatcher: None) -> None:
    keyless = lambda: relay(queue, MESSAGES)  # noqa: E731
    board.compare("relay, 1,000 keys / no keys", lambda: relay(queue, MESSAGES, 1000), keyless, "msg/s")
    board.compare("relay, one key / no keys", lambda: relay(queue, FEW, 1), keyless, "msg/s")


def test_publishing_costs_little(board: Board, queue: Callable[[], int]) -> None:
    def business(then: Callable[[int], object]) -> float:
        began = time.perf_counter()
        for n in range(FEW):
            with transaction.atomic():
                Group.objects.update_or_create(name="bench", defaults={"name": "bench"})
                then(n)
        return (time.perf_counter() - began) / FEW * 1000

    board.compare(
        "a business transaction with publish() / without", lambda: business(lambda n: publish_one("bench.made", BODY)),
        lambda: business(lambda n: None), "ms",
    )  # fmt: skip
    Pending.objects.all().delete()


def test_latency_from_commit_to_confirm(
    board: Board, amqp: str, queue: Callable[[], int], dispatcher: None
) -> None:
    """Against the shortest way there is: a publish of pika's own with its confirm."""
    made = sends(FEW)
    Dispatch.objects.all().delete()

    def ours() -> float:
        waits = []
        for _ in range(20):
            with transaction.atomic():
                message = publish_one("bench.made", BODY)
            wait_until(Dispatch.objects.filter(message=message.pk).exists, 10, 0.001)
            sent = Dispatch.objects.get(message=message.pk)
            waits.append((sent.at - message.created_at).total_seconds() * 1000)
        return sorted(waits)[len(waits) // 2]

    def pika_alone() -> float:
        with pika.BlockingConnection(pika.URLParameters(amqp)) as broker:
            channel = broker.channel()
            channel.confirm_delivery()
            waits = []
            for send in made[:20]:
                began = time.perf_counter()
                channel.basic_publish(send.exchange, send.routing_key, send.body, mandatory=True)
                waits.append((time.perf_counter() - began) * 1000)
        return sorted(waits)[len(waits) // 2]

    board.compare("commit to recorded confirm / pika's publish and confirm", ours, pika_alone, "ms")
