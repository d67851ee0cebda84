"""Programs that do not use this package, over RabbitMQ: they receive from it and send to it, by the docs alone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import aio_pika
import kombu
import pika
import pytest
from django.db import transaction

from outbox_core import publish
from outbox_core.inbox.consumer import ConsumerLoop
from outbox_core.inbox.message import InboxMessage
from outbox_core.inbox.registry import Subscription
from outbox_core.models import Duplicate, Handling, Message
from outbox_core.operations import verbs
from outbox_core.shutdown import Stop
from outbox_core.transports import transport
from tests.integration.receiving import subscribed
from tests.integration.relaying import bind, relay
from tests.processes import Process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.pair("real")]

ANA = verbs.Actor("1", "ana", "cli")
PAGE = Path(__file__).resolve().parent.parent.parent / "docs/wire.md"

Seen = list[InboxMessage]


def example(name: str, folder: Path) -> Path:
    """A program of the page, as a file."""
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```\n", PAGE.read_text(), re.S)
    assert found, f"{PAGE} has no example {name}"
    path = folder / f"{name}.py"
    path.write_text(found[1])
    return path


def consume(*subscriptions: Subscription) -> Counter[str]:
    return ConsumerLoop("default", {s.consumer: s for s in subscriptions}).run(Stop(), once=True)


def declare(*subscriptions: Subscription) -> None:
    assert transport().apply_topology([s.queue for s in subscriptions]) == []


def say(type: str = "shop.sold", payload: Any = None, **options: Any) -> Message:
    with transaction.atomic():
        return publish(type, {"price": Decimal("1.10")} if payload is None else payload, **options)


# Others receive


def test_the_consumer_of_the_page_receives_each_message_once_and_the_newest_price(
    amqp: str, exchange: str, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    path = example("consumer", tmp_path)
    environment = {**os.environ, "AMQP_URL": amqp, "OUTBOX_EXCHANGE": exchange}
    process = Process([sys.executable, str(path)], env=environment, log=tmp_path / "log", cwd=tmp_path)
    with closing(pika.BlockingConnection(pika.URLParameters(amqp))) as connection:
        channel = connection.channel()
        try:
            wait_until(lambda: _consumers(amqp, "price-list") == 1 or not process.running)
            assert process.running, process.output
            old = say("catalog.price_changed", {"product_id": 7, "price": Decimal("1.10")}, key="product-7")
            say("catalog.price_changed", {"product_id": 7, "price": Decimal("2.50")}, key="product-7")
            relay()
            verbs.act("redispatch", old.message_id, actor=ANA, reason="a test")
            relay()
            wait_until(lambda: channel.queue_declare("price-list", passive=True).method.message_count == 0)
            process.end()
            assert _consumers(amqp, "price-list") == 0
            assert channel.queue_declare("price-list", passive=True).method.message_count == 0
        finally:
            process.kill()
            channel.queue_delete("price-list")
    with closing(sqlite3.connect(tmp_path / "prices.sqlite3")) as database:
        assert database.execute("SELECT product, price FROM price").fetchall() == [(7, "2.50")]
        assert database.execute("SELECT count(*) FROM handled").fetchone() == (2,)


def _consumers(amqp: str, queue: str) -> int:
    with closing(pika.BlockingConnection(pika.URLParameters(amqp))) as connection:
        try:
            return int(connection.channel().queue_declare(queue, passive=True).method.consumer_count)
        except pika.exceptions.ChannelClosedByBroker:
            return 0


def test_kombu_reads_our_messages(amqp: str, exchange: str) -> None:
    queue = bind(exchange, "shop.*")
    sent = say(key="k", headers={"region": "eu"}, correlation_id="c")
    relay()
    came: list[tuple[Any, kombu.Message]] = []
    with (
        kombu.Connection(amqp) as connection,
        connection.SimpleQueue(kombu.Queue(queue.name, no_declare=True), accept=["json"]) as box,
    ):
        message = box.get(timeout=10)
        came.append((message.payload, message))
        message.ack()
    [(payload, message)] = came
    assert payload == {"price": 1.1}
    assert message.properties["message_id"] == message.headers["cloudEvents_id"] == str(sent.message_id)
    assert (message.properties["type"], message.properties["correlation_id"]) == ("shop.sold", "c")
    assert (message.headers["outbox-key"], message.headers["region"]) == ("k", "eu")
    assert message.headers["outbox-position"] == sent.pk


def test_aio_pika_reads_our_messages(amqp: str, exchange: str) -> None:
    queue = bind(exchange, "shop.*")
    sent = say(key="k", headers={"deep": {"list": [1, True, "ä"]}})
    relay()

    async def receive() -> aio_pika.abc.AbstractIncomingMessage:
        async with await aio_pika.connect(amqp) as connection:
            channel = await connection.channel()
            declared = await channel.get_queue(queue.name)
            found = await declared.get(timeout=10)
            await found.ack()
            return found

    message = asyncio.run(receive())
    assert message.body == b'{"price":1.10}'
    assert (message.message_id, message.type) == (str(sent.message_id), "shop.sold")
    assert (message.content_type, message.delivery_mode) == ("application/json", 2)
    assert message.headers["deep"] == {"list": [1, True, "ä"]}
    assert message.headers["outbox-attempt"] == 1
    assert message.timestamp is not None


# Others send


def test_the_producer_of_the_page_is_received_once_by_its_own_id(
    amqp: str, exchange: str, tmp_path: Path
) -> None:
    path = example("producer", tmp_path)
    seen: Seen = []
    with subscribed(seen.append, "payments.*") as subscription:
        declare(subscription)
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, str(path)], env={**os.environ, "AMQP_URL": amqp, "OUTBOX_EXCHANGE": exchange},
                capture_output=True, text=True, timeout=30,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        assert consume(subscription) == {"handled": 1, "duplicate": 1}
    [m] = seen
    assert (m.id, m.type, m.key, m.source) == ("settlement-000123", "payments.settled", "order-7", "till")
    assert m.payload == {"order_id": 7}
    assert m.published_at is not None
    assert (Duplicate.objects.get().cause, Duplicate.objects.get().same_payload) == ("producer", True)


def test_kombu_sends_messages_and_celery_tasks(amqp: str, exchange: str) -> None:
    task = {"lang": "py", "task": "shop.tasks.paint", "id": "6ee5e7a7-ec1b", "root_id": "6ee5e7a7-ec1b", "retries": 0,
            "eta": None, "timelimit": [None, None], "origin": "gen1@host"}  # fmt: skip
    seen: Seen = []
    with (
        subscribed(seen.append, "test.said", "shop.tasks.#") as subscription,
        kombu.Connection(amqp) as connection,
    ):
        declare(subscription)
        producer = connection.Producer(serializer="json")
        to = kombu.Exchange(exchange, "topic", durable=True)
        for _ in range(2):
            producer.publish({"n": 1}, exchange=to, routing_key="test.said", message_id="kombu-1")
            producer.publish(
                [[7], {}, {"callbacks": None}], exchange=to, routing_key="shop.tasks.paint", headers=task,
                correlation_id=task["id"], reply_to="nowhere",
            )  # fmt: skip
        assert consume(subscription) == {"handled": 2, "duplicate": 2}
    assert {(m.id, m.type) for m in seen} == {("kombu-1", "test.said"), (task["id"], "shop.tasks.paint")}
    assert not Handling.objects.exists()


def test_aio_pika_sends_cloudevents_in_both_modes(amqp: str, exchange: str) -> None:
    said = {"specversion": "1.0", "source": "/till/7", "type": "com.example.sold", "subject": "till-7"}
    binary = {f"cloudEvents:{name}": value for name, value in {**said, "id": "binary-1"}.items()}
    messages = [
        aio_pika.Message(b'{"n": 1}', headers=binary, content_type="application/json"),
        aio_pika.Message(
            json.dumps({**said, "id": "structured-1", "data": {"n": 1}}).encode(),
            content_type="application/cloudevents+json; charset=UTF-8",
        ),
    ]

    async def send() -> None:
        async with await aio_pika.connect(amqp) as connection:
            channel = await connection.channel()
            to = await channel.get_exchange(exchange)
            for message in messages * 2:
                await to.publish(message, routing_key="shop.sold")

    seen: Seen = []
    with subscribed(seen.append, "shop.sold") as subscription:
        declare(subscription)
        asyncio.run(send())
        assert consume(subscription) == {"handled": 2, "duplicate": 2}
    assert {m.id for m in seen} == {"binary-1", "structured-1"}
    for m in seen:
        assert (m.type, m.key, m.source, m.payload) == ("com.example.sold", "till-7", "/till/7", {"n": 1})


@pytest.mark.parametrize("group", [1, 20])
def test_what_others_send_wrongly_is_kept_and_harms_no_one(amqp: str, exchange: str, group: int) -> None:
    """Every kind of bad message between good ones: each leaves the queue, and each good one is handled once."""
    wrong: dict[str, tuple[bytes, dict[str, Any]]] = {
        "Expecting property name": (b"{", {}),
        "not UTF-8": ('"é"'.encode("latin-1"), {}),
        "charset is latin-1": (b"{}", {"content_type": "application/json; charset=latin-1"}),
        "content type is 'text/xml'": (b"<a/>", {"content_type": "text/xml"}),
        "content encoding is 'gzip'": (b"\x1f\x8b", {"content_encoding": "gzip"}),
        "body is 1500000 bytes long": (b"1" * 1_500_000, {}),
        "digits": (b"1" * 5000, {}),
        "id is 300 bytes": (b"{}", {"message_id": "i" * 255, "headers": {"cloudEvents_id": "i" * 300}}),
        "key holds": (b"{}", {"headers": {"outbox-key": "a\0"}}),
    }
    seen: Seen = []
    with subscribed(seen.append, group=group) as subscription, kombu.Connection(amqp) as connection:
        declare(subscription)
        with closing(pika.BlockingConnection(pika.URLParameters(amqp))) as plain:
            channel = plain.channel()
            channel.confirm_delivery()
            for number, (body, properties) in enumerate(wrong.values()):
                channel.basic_publish(
                    exchange, "test.said", body, pika.BasicProperties(**{"message_id": f"bad-{number}", **properties})
                )  # fmt: skip
                channel.basic_publish(
                    exchange, "test.said", b"{}", pika.BasicProperties(message_id=f"{number}")
                )
            channel.basic_publish(exchange, "test.said", b"{}")  # without an id
            to = kombu.Exchange(exchange, "topic", durable=True)
            connection.Producer().publish({}, exchange=to, routing_key="test.said", compression="gzip")
            outcomes = consume(subscription)
            left = channel.queue_declare(subscription.consumer, passive=True).method.message_count
    assert outcomes == {"undecodable": len(wrong) + 1, "handled": len(wrong) + 1}
    assert left == 0
    assert {str(number) for number in range(len(wrong))} < {m.id for m in seen}
    rows = list(Handling.objects.all())
    assert {row.state for row in rows} == {"undecodable"}
    for reason, (body, _) in wrong.items():
        [row] = [row for row in rows if reason in row.error]
        assert bytes(row.body) == body
    assert sum("is compressed" in row.error or "content encoding" in row.error for row in rows) == 2
