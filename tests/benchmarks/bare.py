"""What the relay is measured against: pika by itself, and an outbox that sends and marks one message at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pika
from django.db import connection, transaction

from outbox_core.transports.base import Send
from tests.pikas_form import properties

WINDOW = 500


def pipelined(url: str, sends: Sequence[Send], *, headers: bool) -> float:
    """Messages per second of a `SelectConnection` with confirms, WINDOW deep, persistent and mandatory. Connecting
    is not counted. `headers`: with the properties and headers of ours, else with the delivery mode alone."""
    run = _Pipelined(sends, headers)
    loop = pika.SelectConnection(
        pika.URLParameters(url), on_open_callback=run.opened,
        on_close_callback=lambda closed, reason: closed.ioloop.stop(),
    )  # fmt: skip
    run.connection = loop
    loop.ioloop.start()
    loop.ioloop.close()
    return len(sends) / run.seconds


class _Pipelined:
    def __init__(self, sends: Sequence[Send], headers: bool) -> None:
        self.sends, self.headers = sends, headers
        self.next = self.confirmed = 0
        self.began = self.seconds = 0.0
        self.plain = pika.BasicProperties(delivery_mode=2)
        self.connection: Any = None
        self.channel: Any = None

    def opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self.ready)

    def ready(self, channel: Any) -> None:
        self.channel = channel
        channel.confirm_delivery(self.answered, callback=self.begin)

    def begin(self, _frame: Any) -> None:
        self.began = time.perf_counter()
        self.publish()

    def publish(self) -> None:
        while self.next < len(self.sends) and self.next - self.confirmed < WINDOW:
            send = self.sends[self.next]
            said = properties(send) if self.headers else self.plain
            self.channel.basic_publish(send.exchange, send.routing_key, send.body, said, mandatory=True)
            self.next += 1

    def answered(self, frame: Any) -> None:
        assert frame.method.NAME == "Basic.Ack"
        tag = frame.method.delivery_tag
        self.confirmed = tag if frame.method.multiple else self.confirmed + 1
        if self.confirmed >= len(self.sends):
            self.seconds = time.perf_counter() - self.began
            self.connection.close()
        else:
            self.publish()


def one_by_one(url: str, sends: Sequence[Send]) -> float:
    """Messages per second of the simple outbox: one confirm and one committed UPDATE per message."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bench_simple (id bigint PRIMARY KEY, sent_at timestamptz)")
        cursor.execute("TRUNCATE bench_simple")
        cursor.execute("INSERT INTO bench_simple SELECT n FROM generate_series(0, %s) AS n", [len(sends) - 1])
    with pika.BlockingConnection(pika.URLParameters(url)) as broker:
        channel = broker.channel()
        channel.confirm_delivery()
        began = time.perf_counter()
        for n, send in enumerate(sends):
            channel.basic_publish(
                send.exchange, send.routing_key, send.body, properties(send), mandatory=True
            )
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("UPDATE bench_simple SET sent_at = clock_timestamp() WHERE id = %s", [n])
        return len(sends) / (time.perf_counter() - began)
