"""The receiving side: the same demands on both transports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from outbox_core.transports import transport
from outbox_core.transports.base import Consumer, Outcome, Publisher, Queue, Transport
from tests.integration.carrying import contents, each_alone, gather, message, outcomes, send_all, until_usable

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def broker(exchange: str) -> Transport:
    return transport()


@pytest.fixture
def publisher(broker: Transport) -> Iterator[Publisher]:
    made = broker.publisher()
    made.open()
    until_usable(made)
    yield made
    made.close()


@pytest.fixture
def consume(broker: Transport) -> Iterator[Callable[[Sequence[Queue]], Consumer]]:
    """`consume(queues)`: an open consumer whose queues are declared."""
    made: list[Consumer] = []

    def start(queues: Sequence[Queue]) -> Consumer:
        assert broker.apply_topology(queues) == []
        consumer = broker.consumer(queues)
        consumer.open()
        until_usable(consumer)
        made.append(consumer)
        return consumer

    yield start
    for consumer in made:
        consumer.close()


def test_a_consumer_declares_its_queues_itself(
    broker: Transport, publisher: Publisher, exchange: str, wait_until: Callable[..., object]
) -> None:
    consumer = broker.consumer([Queue(f"{exchange}-shop", ("shop.*",))])
    consumer.open()
    try:
        until_usable(consumer)
        wait_until(
            lambda: send_all(publisher, [[message(exchange)]]).popitem()[1].outcome is Outcome.CONFIRMED
        )
        assert len(gather(consumer, 1)) == 1
        assert dict(consumer.problems) == {}
    finally:
        consumer.close()


def test_no_more_than_the_prefetch_is_handed_over_unacked(
    publisher: Publisher, consume: Callable[[Sequence[Queue]], Consumer], exchange: str
) -> None:
    consumer = consume([Queue(f"{exchange}-shop", ("shop.*",), prefetch=5)])
    sends = [message(exchange) for _ in range(12)]
    send_all(publisher, [sends])
    first = gather(consumer, 5, ack=False)
    assert consumer.receive(0.3) == []
    consumer.ack(first[:2])
    second = gather(consumer, 2, ack=False)
    assert consumer.receive(0.3) == []
    consumer.ack(first[2:] + second)
    rest = gather(consumer, 5)
    assert [d.message_id for d in first + second + rest] == [send.message_id for send in sends]


def test_acks_in_any_order_settle_exactly_those(
    broker: Transport, publisher: Publisher, consume: Callable[[Sequence[Queue]], Consumer], exchange: str
) -> None:
    queue = Queue(f"{exchange}-shop", ("shop.*",))
    consumer = consume([queue])
    send_all(publisher, [[message(exchange) for _ in range(10)]])
    came = gather(consumer, 10, ack=False)
    consumer.ack([came[7], came[2]])
    consumer.ack([came[0], came[1], came[3], came[9]])
    consumer.ack([came[0]])  # twice is as good as once
    consumer.close()
    left = contents(broker, queue)
    assert [d.message_id for d in left] == [came[n].message_id for n in (4, 5, 6, 8)]
    assert all(d.redelivered for d in left)


def test_what_is_released_comes_again_flagged_redelivered(
    publisher: Publisher, consume: Callable[[Sequence[Queue]], Consumer], exchange: str
) -> None:
    consumer = consume([Queue(f"{exchange}-shop", ("shop.*",))])
    sends = [message(exchange) for _ in range(3)]
    send_all(publisher, [sends])
    came = gather(consumer, 3, ack=False)
    assert not any(d.redelivered for d in came)
    consumer.ack([came[0]])
    consumer.release([came[1], came[2]])
    again = gather(consumer, 2)
    assert {d.message_id for d in again} == {sends[1].message_id, sends[2].message_id}
    assert all(d.redelivered for d in again)


def test_each_queue_gets_its_own_copy(
    publisher: Publisher, consume: Callable[[Sequence[Queue]], Consumer], exchange: str
) -> None:
    names = [f"{exchange}-basket", f"{exchange}-orders"]
    consumer = consume([Queue(name, ("shop.sold",)) for name in names])
    send = message(exchange)
    send_all(publisher, [[send]])
    came = gather(consumer, 2)
    assert {(d.queue, d.message_id) for d in came} == {(name, send.message_id) for name in names}
    assert consumer.receive(0.3) == []


def test_patterns_match_as_a_topic_exchange_does_and_two_matches_give_one_copy(
    publisher: Publisher, consume: Callable[[Sequence[Queue]], Consumer], exchange: str
) -> None:
    patterns = {
        "one": ("shop.*",), "any": ("shop.#",), "end": ("#.sold",), "both": ("shop.sold", "shop.*", "#"),
        "middle": ("*.*.sold",),
    }  # fmt: skip
    consumer = consume([Queue(f"{exchange}-{name}", wanted) for name, wanted in patterns.items()])
    types = ["shop.sold", "shop", "shop.book.sold", "sold", "yard.sold"]
    send_all(publisher, [[message(exchange, type)] for type in types])
    expected = {
        "one": {"shop.sold"}, "any": {"shop.sold", "shop", "shop.book.sold"},
        "end": {"shop.sold", "shop.book.sold", "sold", "yard.sold"}, "both": set(types), "middle": {"shop.book.sold"},
    }  # fmt: skip
    came = gather(consumer, sum(len(wanted) for wanted in expected.values()))
    assert consumer.receive(0.3) == []
    for name, wanted in expected.items():
        assert sorted(d.type for d in came if d.queue == f"{exchange}-{name}") == sorted(wanted)


def test_what_was_not_acked_comes_again_after_a_close(
    broker: Transport, publisher: Publisher, consume: Callable[[Sequence[Queue]], Consumer], exchange: str
) -> None:
    queue = Queue(f"{exchange}-shop", ("shop.*",))
    consumer = consume([queue])
    sends = [message(exchange) for _ in range(4)]
    send_all(publisher, [sends])
    came = gather(consumer, 4, ack=False)
    consumer.ack(came[:1])
    consumer.close()
    consumer.ack(came[1:])  # too late: does nothing
    again = contents(broker, queue)
    assert [d.message_id for d in again] == [send.message_id for send in sends[1:]]
    assert all(d.redelivered for d in again)


def test_two_consumers_share_a_queue(
    publisher: Publisher, consume: Callable[[Sequence[Queue]], Consumer], exchange: str
) -> None:
    queue = Queue(f"{exchange}-shop", ("shop.*",), prefetch=2)
    consumers = [consume([queue]), consume([queue])]
    sends = [message(exchange) for _ in range(40)]
    send_all(publisher, each_alone(sends))
    counts, ids = [0, 0], []
    until = time.monotonic() + 20
    while len(ids) < 40 and time.monotonic() < until:
        for n, consumer in enumerate(consumers):
            came = consumer.receive(0.05)
            consumer.ack(came)
            counts[n] += len(came)
            ids += [d.message_id for d in came]
    assert sorted(ids) == sorted(send.message_id for send in sends)
    assert min(counts) > 0


def test_a_single_active_queue_is_consumed_by_one_until_that_one_leaves(
    publisher: Publisher, consume: Callable[[Sequence[Queue]], Consumer], exchange: str
) -> None:
    queue = Queue(f"{exchange}-shop", ("shop.*",), single_active=True)
    first, second = consume([queue]), consume([queue])
    send_all(publisher, [[message(exchange) for _ in range(6)]])
    until = time.monotonic() + 20
    found: dict[int, int] = {0: 0, 1: 0}
    while sum(found.values()) < 6 and time.monotonic() < until:
        for n, consumer in enumerate((first, second)):
            came = consumer.receive(0.1)
            consumer.ack(came)
            found[n] += len(came)
    assert sorted(found.values()) == [0, 6]
    active, waiting = (first, second) if found[0] else (second, first)
    active.close()
    send_all(publisher, [[message(exchange)]])
    assert len(gather(waiting, 1)) == 1


def test_wake_ends_a_receive_at_once(consume: Callable[[Sequence[Queue]], Consumer], exchange: str) -> None:
    consumer = consume([Queue(f"{exchange}-shop", ("shop.*",))])
    began = time.monotonic()
    timer = threading.Timer(0.2, consumer.wake)
    timer.start()
    assert consumer.receive(30) == []
    timer.join()
    assert time.monotonic() - began < 10
    consumer.wake()
    assert consumer.receive(30) == []
    assert time.monotonic() - began < 10


def test_messages_that_were_there_before_the_consumer_are_delivered(
    broker: Transport, publisher: Publisher, exchange: str
) -> None:
    queue = Queue(f"{exchange}-shop", ("shop.*",))
    assert broker.apply_topology([queue]) == []
    sends = [message(exchange) for _ in range(300)]
    assert set(outcomes(send_all(publisher, [sends]), sends)) == {Outcome.CONFIRMED}
    assert [d.message_id for d in contents(broker, queue)] == [send.message_id for send in sends]
