"""What RabbitMQ and other producers can do to a consumer: nothing is lost, and no queue stops another."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from outbox_core.envelope import read
from outbox_core.transports.amqp_consumer import AmqpConsumer
from outbox_core.transports.base import Outcome, Queue
from outbox_core.transports.rabbitmq import RabbitMQ
from tests.integration.carrying import gather, message, send_all, until_usable
from tests.private_servers import RabbitMQ as PrivateRabbitMQ
from tests.processes import free_port

pytestmark = pytest.mark.pair("real")


@pytest.fixture
def consume(exchange: str) -> Iterator[Callable[[str, Sequence[Queue]], AmqpConsumer]]:
    """`consume(url, queues)`: an open consumer."""
    made: list[AmqpConsumer] = []

    def start(url: str, queues: Sequence[Queue]) -> AmqpConsumer:
        consumer = RabbitMQ(url, exchange).consumer(queues)
        consumer.open()
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        consumer.close()


@pytest.fixture
def channel(amqp: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def put(url: str, queue: str, body: bytes = b"{}", properties: pika.BasicProperties | None = None) -> None:
    """One message straight into a queue, as another producer may send it."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, body, properties, mandatory=True)
    connection.close()


def until_consumed(channel: BlockingChannel, queue: str, wait_until: Callable[..., object]) -> None:
    wait_until(lambda: channel.queue_declare(queue, passive=True).method.consumer_count == 1)


def test_a_queue_that_differs_is_one_problem_and_the_others_go_on_until_it_is_resolved(
    amqp: str, exchange: str, channel: BlockingChannel, wait_until: Callable[..., object],
    consume: Callable[[str, Sequence[Queue]], AmqpConsumer],
) -> None:  # fmt: skip
    odd, fine = f"{exchange}-odd", f"{exchange}-fine"
    channel.queue_declare(odd, durable=True, arguments={"x-max-length": 7})
    consumer = consume(amqp, [Queue(odd, ("shop.*",)), Queue(fine, ("shop.*",))])
    wait_until(lambda: consumer.problems)
    assert set(consumer.problems) == {odd}
    assert "x-max-length" in consumer.problems[odd]
    until_consumed(channel, fine, wait_until)
    put(amqp, fine)
    assert [d.queue for d in gather(consumer, 1)] == [fine]
    channel.queue_delete(odd)
    wait_until(lambda: not consumer.problems, timeout=20)
    put(amqp, odd)
    assert [d.queue for d in gather(consumer, 1)] == [odd]


def test_a_main_exchange_of_another_type_is_a_problem_but_the_queues_are_consumed(
    amqp: str,
    exchange: str,
    channel: BlockingChannel,
    wait_until: Callable[..., object],
    consume: Callable[[str, Sequence[Queue]], AmqpConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outbox_core.transports.amqp_feed.RENEW", 0.5)
    channel.exchange_declare(exchange, "fanout", durable=True)
    name = f"{exchange}-shop"
    consumer = consume(amqp, [Queue(name, ("shop.*",))])
    wait_until(lambda: _exists(amqp, name))
    until_consumed(channel, name, wait_until)
    put(amqp, name)
    assert [d.queue for d in gather(consumer, 1)] == [name]
    assert all(word in consumer.problems[name] for word in (exchange, "topic", "fanout"))
    channel.exchange_delete(exchange)
    channel.exchange_declare(exchange, "topic", durable=True)
    wait_until(lambda: not consumer.problems)
    channel.confirm_delivery()
    channel.basic_publish(exchange, "shop.sold", b"bound again", mandatory=True)
    assert [d.body for d in gather(consumer, 1)] == [b"bound again"]


def test_a_main_exchange_that_was_deleted_is_declared_and_bound_again(
    amqp: str,
    exchange: str,
    channel: BlockingChannel,
    wait_until: Callable[..., object],
    consume: Callable[[str, Sequence[Queue]], AmqpConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outbox_core.transports.amqp_feed.RENEW", 0.3)
    name = f"{exchange}-shop"
    consumer = consume(amqp, [Queue(name, ("shop.*", "yard.*"))])
    wait_until(lambda: _exists(amqp, name))
    until_consumed(channel, name, wait_until)
    channel.queue_unbind(name, exchange, "yard.*")
    time.sleep(1)  # several looks: what someone has unbound stays so
    assert not _arrives(amqp, exchange, "yard.sold")
    channel.exchange_delete(exchange)
    wait_until(lambda: _arrives(amqp, exchange, "yard.sold"))
    assert [d.routing_key for d in gather(consumer, 1)] == ["yard.sold"]
    assert dict(consumer.problems) == {}


def _arrives(url: str, exchange: str, type: str) -> bool:
    """Publish, and say whether a queue took it."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish(exchange, type, b"{}", mandatory=True)
    except (pika.exceptions.UnroutableError, pika.exceptions.ChannelClosedByBroker):
        return False
    finally:
        connection.close()
    return True


def test_a_deleted_queue_is_declared_and_consumed_again(
    amqp: str, exchange: str, channel: BlockingChannel, wait_until: Callable[..., object],
    consume: Callable[[str, Sequence[Queue]], AmqpConsumer],
) -> None:  # fmt: skip
    names = [f"{exchange}-a", f"{exchange}-b"]
    consumer = consume(amqp, [Queue(name, ("shop.*",)) for name in names])
    until_usable(consumer)
    for name in names:
        wait_until(lambda name=name: _exists(amqp, name))
        until_consumed(channel, name, wait_until)
    put(amqp, names[0])
    [held] = gather(consumer, 1, ack=False)
    channel.queue_delete(names[0])
    wait_until(lambda: _exists(amqp, names[0]))
    until_consumed(channel, names[0], wait_until)
    consumer.ack([held])  # of the queue that is gone: does nothing
    publisher = RabbitMQ(amqp, exchange).publisher()
    publisher.open()
    until_usable(publisher)
    assert send_all(publisher, [[message(exchange)]]).popitem()[1].outcome is Outcome.CONFIRMED
    publisher.close()
    assert {d.queue for d in gather(consumer, 2)} == set(names)
    assert dict(consumer.problems) == {}


def _exists(url: str, queue: str) -> bool:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        connection.channel().queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    finally:
        connection.close()
    return True


def test_a_handler_longer_than_the_heartbeat_keeps_its_delivery(
    amqp: str, exchange: str, channel: BlockingChannel, wait_until: Callable[..., object],
    consume: Callable[[str, Sequence[Queue]], AmqpConsumer],
) -> None:  # fmt: skip
    name = f"{exchange}-shop"
    consumer = consume(f"{amqp}?heartbeat=1", [Queue(name, ("shop.*",))])
    wait_until(lambda: _exists(amqp, name))
    until_consumed(channel, name, wait_until)
    since = consumer.state.since
    put(amqp, name)
    [held] = gather(consumer, 1, ack=False)
    time.sleep(4)  # the handler; RabbitMQ gives up after two seconds without a heartbeat
    assert consumer.state.since == since
    consumer.ack([held])
    consumer.close()
    wait_until(lambda: channel.queue_declare(name, passive=True).method.consumer_count == 0)
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_a_restarted_broker_delivers_again_what_was_not_acked(
    private_rabbitmq: PrivateRabbitMQ, exchange: str, wait_until: Callable[..., object],
    consume: Callable[[str, Sequence[Queue]], AmqpConsumer],
) -> None:  # fmt: skip
    node = private_rabbitmq
    names = [f"{exchange}-a", f"{exchange}-b"]
    third = f"{exchange}-c"
    consumer = consume(node.url, [Queue(name, ("shop.*",)) for name in names])
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    connection.channel().queue_declare(third, durable=True)
    connection.close()
    for name in names:
        wait_until(lambda name=name: _exists(node.url, name))
    for name in names:
        put(node.url, name, properties=pika.BasicProperties(delivery_mode=2, message_id=name))
    held = gather(consumer, 2, ack=False)
    node.stop()
    wait_until(lambda: consumer.state.name == "down")
    consumer.ack(held)  # of a connection that is gone: does nothing
    node.start()
    again = gather(consumer, 2)
    assert {d.message_id for d in again} == set(names)
    assert all(d.redelivered for d in again)
    for name in [*names, third]:
        put(node.url, name)
    assert {d.queue for d in gather(consumer, 2)} == set(names)
    assert consumer.receive(0.5) == []


def test_a_delivery_that_is_acked_too_late_for_the_broker_comes_again(
    private_rabbitmq: PrivateRabbitMQ, exchange: str, wait_until: Callable[..., object],
    consume: Callable[[str, Sequence[Queue]], AmqpConsumer],
) -> None:  # fmt: skip
    node = private_rabbitmq
    node.ctl(
        "eval",
        "application:set_env(rabbit, consumer_timeout, 1000), application:set_env(rabbit, channel_tick_interval, 500).",
    )
    name = f"{exchange}-shop"
    consumer = consume(node.url, [Queue(name, ("shop.*",))])
    wait_until(lambda: _exists(node.url, name))
    put(node.url, name)
    [held] = gather(consumer, 1, ack=False)
    again = gather(consumer, 1, ack=False)
    assert again[0].redelivered
    consumer.ack([held])
    consumer.ack(again)
    put(node.url, name, b"next")
    assert [d.body for d in gather(consumer, 1)] == [b"next"]


def test_a_broker_that_is_not_there_is_a_state_and_no_delivery(
    exchange: str, consume: Callable[[str, Sequence[Queue]], AmqpConsumer], wait_until: Callable[..., object]
) -> None:
    consumer = consume(
        f"amqp://guest:guest@127.0.0.1:{free_port()}/", [Queue(f"{exchange}-shop", ("shop.*",))]
    )
    wait_until(lambda: consumer.state.name == "down")
    assert consumer.receive(0.1) == []
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 2


def test_what_other_producers_send_is_handed_over_as_it_came(
    amqp: str,
    exchange: str,
    consume: Callable[[str, Sequence[Queue]], AmqpConsumer],
    wait_until: Callable[..., object],
) -> None:
    name = f"{exchange}-shop"
    consumer = consume(amqp, [Queue(name, ("shop.*",))])
    wait_until(lambda: _exists(amqp, name))
    put(amqp, name, b"\xff\x00 not json")
    [bare] = gather(consumer, 1)
    assert (bare.message_id, bare.type, bare.headers, bare.timestamp, bare.content_type) == (
        None,
        "",
        {},
        None,
        "",
    )
    assert bare.body == b"\xff\x00 not json"
    assert (bare.exchange, bare.routing_key) == ("", name)
    headers = {
        "decimal": Decimal("1.10"), "bytes": b"\xff\xfe", "when": datetime(2026, 1, 2, tzinfo=UTC), "nothing": None,
        "deep": {"list": [1, {"x": [True, "ä"]}]},
    }  # fmt: skip
    put(
        amqp,
        name,
        properties=pika.BasicProperties(headers=headers, timestamp=2**63, message_id="ä" * 100, priority=3),
    )
    [odd] = gather(consumer, 1)
    assert dict(odd.headers) == headers
    assert (odd.message_id, odd.timestamp) == ("ä" * 100, 2**63)
    assert read(odd).published_at is None


def test_headers_that_cannot_be_read_stop_nothing(
    amqp: str,
    exchange: str,
    consume: Callable[[str, Sequence[Queue]], AmqpConsumer],
    wait_until: Callable[..., object],
) -> None:
    """pika itself ends the connection over a date that is out of range, and cuts a float to a whole number."""
    name = f"{exchange}-shop"
    consumer = consume(amqp, [Queue(name, ("shop.*",))])
    wait_until(lambda: _exists(amqp, name))
    since = consumer.state.since

    class Raw(pika.BasicProperties):
        """Properties that are one header, given as bytes."""

        def __init__(self, entry: bytes) -> None:
            super().__init__()
            self.entry = entry

        def encode(self) -> list[bytes]:
            table = b"\x01a" + self.entry
            return [struct.pack(">HI", 1 << 13, len(table)), table]

    entries = {
        "date": struct.pack(">cQ", b"T", 1_767_225_600_000_000_000), "half": struct.pack(">cd", b"d", 1.5),
    }  # fmt: skip
    for entry in entries.values():
        put(amqp, name, properties=Raw(entry))
    assert [d.headers["a"] for d in gather(consumer, 2)] == [1_767_225_600_000_000_000, 1.5]
    assert consumer.state.since == since
