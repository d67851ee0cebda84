"""Consuming, from RabbitMQ to a committed effect, against pika by itself with the same two rows per message."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from django.db import connection, transaction

from dashboard.demo.models import Letter
from outbox_core.models import Receipt
from outbox_core.transports import transport
from outbox_core.transports.base import Publisher, Queue
from tests.benchmarks.conftest import Board
from tests.bulk.handlers import CONSUMER, INSERT, TYPE
from tests.integration.carrying import each_alone, message, send_all, until_usable
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = max(200, int(os.environ.get("BENCH_MESSAGES", "20000")) // 5)
GROUP = 100


@pytest.fixture
def fill(pair: str, board: Board, exchange: str) -> Iterator[Callable[[], None]]:
    """Called, it puts MESSAGES messages into the consumer's queue, and empties the tables."""
    if pair != "real":
        board.note("consuming against bare pika: it needs PostgreSQL and RabbitMQ (PAIR=real)")
        pytest.skip("needs PostgreSQL and RabbitMQ")
    assert transport().apply_topology([Queue(CONSUMER, (TYPE,))]) == []
    publisher: Publisher = transport().publisher()
    publisher.open()
    until_usable(publisher)

    def put() -> None:
        Receipt.objects.all().delete()
        Letter.objects.all().delete()
        send_all(publisher, each_alone([message(exchange, TYPE) for _ in range(MESSAGES)]))

    yield put
    publisher.close()


def test_consuming_against_one_transaction_each_and_against_bare_pika(
    board: Board, amqp: str, fill: Callable[[], None], spawn: Any
) -> None:
    def ours(group: int) -> float:
        fill()
        env = {"TEST_APPS": "tests.bulk", "BULK_GROUP": str(group)}
        worker = spawn("outbox_consume", "--consumer", CONSUMER, env=env)
        wait_until(Receipt.objects.exists, 60, 0.005)  # starting is not counted
        began, before = time.perf_counter(), Receipt.objects.count()
        wait_until(lambda: Receipt.objects.count() == MESSAGES, 300, 0.05)
        seconds = time.perf_counter() - began
        worker.send(15)
        assert worker.wait(20) == 0, worker.output
        assert Letter.objects.count() == MESSAGES
        return (MESSAGES - before) / seconds

    def bare() -> float:
        fill()
        return consume_by_hand(amqp)

    alone = lambda: ours(1)  # noqa: E731
    board.compare(
        f"consume, groups of {GROUP} / one transaction each", lambda: ours(GROUP), alone, "msg/s", wanted=">= 3",
        messages=MESSAGES,
    )  # fmt: skip
    board.compare(
        "consume, one transaction each / bare pika, the same two INSERTs", alone, bare, "msg/s", wanted=">= 0.7",
        messages=MESSAGES,
    )  # fmt: skip


def consume_by_hand(url: str) -> float:
    """Messages per second of pika and two INSERTs in one transaction each, acked after the commit."""
    receipt = (
        f"INSERT INTO {Receipt._meta.db_table} (consumer, message_id, received_at, outcome, digest, attempt) "
        "VALUES (%s, %s, now(), 'processed', '', 1)"
    )
    with pika.BlockingConnection(pika.URLParameters(url)) as broker:
        channel = broker.channel()
        channel.basic_qos(prefetch_count=100)
        began = time.perf_counter()
        for done, (method, properties, _body) in enumerate(channel.consume(CONSUMER), 1):
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(INSERT, [properties.message_id, TYPE])
                cursor.execute(receipt, [CONSUMER, properties.message_id])
            channel.basic_ack(method.delivery_tag)
            if done == MESSAGES:
                break
        seconds = time.perf_counter() - began
        channel.cancel()
    return MESSAGES / seconds
