"""What RabbitMQ and the way to it can do to a publisher: each message still has exactly one, true result."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from outbox_core.clock import lease_clock
from outbox_core.transports.base import Outcome, Publisher, Queue
from outbox_core.transports.rabbitmq import RabbitMQ
from tests.integration.carrying import (
    contents,
    each_alone,
    later,
    message,
    outcomes,
    send_all,
    settle,
    until_usable,
)  # fmt: skip
from tests.private_servers import RabbitMQ as PrivateRabbitMQ
from tests.processes import free_port

pytestmark = pytest.mark.pair("real")

CONFIRMED, REFUSED, INVALID, UNSENT = Outcome.CONFIRMED, Outcome.REFUSED, Outcome.INVALID, Outcome.UNSENT
ROAD, UNKNOWN = Outcome.ROAD, Outcome.UNKNOWN


@pytest.fixture
def publish(exchange: str) -> Iterator[Callable[..., Publisher]]:
    """`publish(url, window=, confirm_timeout=)`: an open publisher."""
    made: list[Publisher] = []

    def start(url: str, **options: float) -> Publisher:
        publisher = RabbitMQ(
            url, exchange, int(options.get("window", 500)), options.get("confirm_timeout", 30)
        ).publisher()
        publisher.open()
        made.append(publisher)
        return publisher

    yield start
    for publisher in made:
        publisher.close()


@pytest.fixture
def queue(amqp: str, exchange: str) -> Queue:
    made = Queue(f"{exchange}-shop", ("shop.#",), prefetch=1000)
    assert RabbitMQ(amqp, exchange).apply_topology([made]) == []
    return made


@pytest.fixture
def channel(amqp: str) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def test_a_header_frame_that_is_too_large_is_invalid_alone(
    amqp: str, publish: Callable[..., Publisher], queue: Queue, exchange: str
) -> None:
    publisher = publish(f"{amqp}?frame_max=8192")
    until_usable(publisher)
    since = publisher.state.since
    sends = [message(exchange) for _ in range(50)]
    sends[20] = message(exchange, headers={"stack": "x" * 8192})
    sends[30] = message(exchange, headers={"stack": "x" * 7000}, body=b"y" * 100_000)
    results = send_all(publisher, each_alone(sends))
    assert [r.send for r in results.values() if r.outcome is not CONFIRMED] == [sends[20]]
    assert results[sends[20].tag].outcome is INVALID
    assert "8192" in results[sends[20].tag].detail
    assert publisher.state.since == since


def test_the_message_that_closes_the_channel_is_found_among_hundreds(
    amqp: str, publish: Callable[..., Publisher], queue: Queue, exchange: str
) -> None:
    publisher = publish(amqp)
    until_usable(publisher)
    sends = [message(exchange, tag=n) for n in range(400)]
    for n in (123, 124, 399):
        sends[n] = message(exchange, tag=n, headers={"CC": "not a list of routing keys"})
    results = send_all(publisher, each_alone(sends))
    assert {n for n in range(400) if results[n].outcome is not CONFIRMED} == {123, 124, 399}
    assert results[123].outcome is INVALID
    assert "CC" in results[123].detail or "header" in results[123].detail.lower()
    came = Counter(d.message_id for d in contents(RabbitMQ(amqp, exchange), queue))
    assert set(came) == {send.message_id for send in sends} - {sends[n].message_id for n in (123, 124, 399)}
    # What may be there twice says so.
    assert {
        results[n].send.message_id
        for n in range(400)
        if results[n].outcome is CONFIRMED and not results[n].detail
    } >= {id_ for id_, copies in came.items() if copies == 1} - {
        results[n].send.message_id for n in range(400) if results[n].detail
    }
    assert all(results[n].detail for n in range(400) if came[sends[n].message_id] > 1)


def test_an_exchange_that_takes_no_messages_refuses_each_of_its_own_only(
    amqp: str, publish: Callable[..., Publisher], queue: Queue, exchange: str,
    channel: pika.adapters.blocking_connection.BlockingChannel,
) -> None:  # fmt: skip
    inner = f"{exchange}-internal"
    channel.exchange_declare(inner, "topic", internal=True, auto_delete=False)
    publisher = publish(amqp)
    until_usable(publisher)
    closed, kept = [message(inner) for _ in range(30)], [message(exchange) for _ in range(30)]
    results = send_all(publisher, each_alone(s for pair in zip(closed, kept, strict=True) for s in pair))
    assert set(outcomes(results, closed)) == {REFUSED}
    assert {results[s.tag].error for s in closed} == {"AccessRefused"}
    assert set(outcomes(results, kept)) == {CONFIRMED}
    channel.exchange_delete(inner)


def test_a_main_exchange_of_another_type_refuses_its_messages_only_and_heals(
    amqp: str, publish: Callable[..., Publisher], exchange: str, wait_until: Callable[..., object],
    channel: pika.adapters.blocking_connection.BlockingChannel,
) -> None:  # fmt: skip
    channel.exchange_declare(exchange, "fanout", durable=True)
    queue = channel.queue_declare(f"{exchange}-direct", durable=True).method.queue
    publisher = publish(amqp)
    until_usable(publisher)
    ours, other = [message(exchange) for _ in range(5)], message("", routing_key=queue)
    results = send_all(publisher, [*each_alone(ours), [other]])
    assert set(outcomes(results, ours)) == {REFUSED}
    assert results[ours[0].tag].error == "TopologyMismatch"
    assert all(word in results[ours[0].tag].detail for word in (exchange, "topic", "fanout"))
    assert results[other.tag].outcome is CONFIRMED
    channel.exchange_delete(exchange)
    made = Queue(f"{exchange}-shop", ("shop.#",))
    assert RabbitMQ(amqp, exchange).apply_topology([made]) == []
    wait_until(lambda: send_all(publisher, [[message(exchange)]]).popitem()[1].outcome is CONFIRMED)
    channel.queue_delete(queue)


def test_an_exchange_that_is_deleted_on_the_way_is_refused_and_works_again_when_it_is_back(
    amqp: str, publish: Callable[..., Publisher], exchange: str, wait_until: Callable[..., object],
    channel: pika.adapters.blocking_connection.BlockingChannel,
) -> None:  # fmt: skip
    name = f"{exchange}-short"
    channel.exchange_declare(name, "fanout")
    publisher = publish(amqp)
    until_usable(publisher)
    send = message(name, mandatory=False)
    assert outcomes(send_all(publisher, [[send]]), [send]) == [CONFIRMED]
    channel.exchange_delete(name)
    sends = [message(name, mandatory=False) for _ in range(100)]
    results = send_all(publisher, each_alone(sends))
    assert set(outcomes(results, sends)) == {REFUSED}
    assert {result.error for result in results.values()} == {"ExchangeNotFound"}
    channel.exchange_declare(name, "fanout")
    wait_until(
        lambda: send_all(publisher, [[message(name, mandatory=False)]]).popitem()[1].outcome is CONFIRMED
    )
    channel.exchange_delete(name)


def test_a_full_queue_that_rejects_is_the_roads_fault(
    amqp: str, publish: Callable[..., Publisher], exchange: str,
    channel: pika.adapters.blocking_connection.BlockingChannel,
) -> None:  # fmt: skip
    arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
    queue = channel.queue_declare(f"{exchange}-small", durable=True, arguments=arguments).method.queue
    publisher = publish(amqp)
    until_usable(publisher)
    sends = [message("", routing_key=queue) for _ in range(50)]
    results = send_all(publisher, [sends])
    counts = Counter((r.outcome, r.error) for r in results.values())
    assert counts[ROAD, "Nacked"] == 1
    assert counts[CONFIRMED, ""] >= 5
    assert counts[UNSENT, ""] == 49 - counts[CONFIRMED, ""]
    channel.queue_delete(queue)


def test_without_a_broker_everything_comes_back_at_once(
    publish: Callable[..., Publisher], exchange: str, wait_until: Callable[..., object]
) -> None:
    port = free_port()
    publisher = publish(f"amqp://guest:a-secret@127.0.0.1:{port}/")
    wait_until(lambda: publisher.state.name == "down")
    state = publisher.state
    assert f"127.0.0.1:{port}" in state.detail
    assert "refused" in state.detail
    assert "a-secret" not in state.detail
    assert state.since is not None
    lanes = [[message(exchange), message(exchange)], [message(exchange)]]
    began = time.monotonic()
    results = send_all(publisher, lanes)
    assert time.monotonic() - began < 2
    assert outcomes(results, [s for lane in lanes for s in lane]) == [ROAD, UNSENT, ROAD]
    assert results[lanes[0][0].tag].error == "BrokerUnreachable"
    assert publisher.state.since == state.since  # down since then, not since the last try


def test_a_host_that_never_answers_holds_up_neither_a_message_nor_the_end(
    publish: Callable[..., Publisher], exchange: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        publisher = publish(f"amqp://guest:guest@127.0.0.1:{silent.getsockname()[1]}/")
        sends = [message(exchange), message(exchange)]
        began = time.monotonic()
        assert outcomes(send_all(publisher, [sends]), sends) == [ROAD, UNSENT]
        assert publisher.state.name == "connecting"
        publisher.close(2)
        assert time.monotonic() - began < 4


def test_a_user_who_may_not_declare_can_still_send_and_receive(
    private_rabbitmq: PrivateRabbitMQ, publish: Callable[..., Publisher], exchange: str
) -> None:
    node = private_rabbitmq
    queue = Queue(f"{exchange}-shop", ("shop.#",))
    assert RabbitMQ(node.url, exchange).apply_topology([queue]) == []
    node.ctl("add_user", "worker", "worker")
    node.ctl("set_permissions", "worker", "^$", ".*", ".*")
    restricted = node.url.replace("guest:guest", "worker:worker")
    publisher = publish(restricted)
    until_usable(publisher)
    send, missing = message(exchange), message(f"{exchange}-missing")
    assert outcomes(send_all(publisher, [[send], [missing]]), [send, missing]) == [CONFIRMED, REFUSED]
    assert [d.message_id for d in contents(RabbitMQ(restricted, exchange), queue)] == [send.message_id]
    assert RabbitMQ(restricted, exchange).check_topology([queue]) == []


def test_wrong_credentials_are_said(
    amqp: str, publish: Callable[..., Publisher], wait_until: Callable[..., object]
) -> None:
    publisher = publish(amqp.replace("guest:guest", "guest:wrong-one"))
    wait_until(lambda: publisher.state.name == "down")
    assert "refused user or password" in publisher.state.detail
    assert "wrong-one" not in publisher.state.detail


def test_connections_that_are_closed_in_the_middle_cost_no_result(
    private_rabbitmq: PrivateRabbitMQ,
    publish: Callable[..., Publisher],
    exchange: str,
    scale: Callable[[int], int],
) -> None:
    node = private_rabbitmq
    broker, queue = RabbitMQ(node.url, exchange), Queue(f"{exchange}-shop", ("shop.#",), prefetch=1000)
    assert broker.apply_topology([queue]) == []
    publisher = publish(node.url)
    until_usable(publisher)
    sends = [message(exchange) for _ in range(max(2_000, scale(20_000)))]
    half = len(sends) // 2
    lanes = each_alone(sends[:half]) + [sends[at : at + 10] for at in range(half, len(sends), 10)]
    publisher.submit(lanes, later())
    results = []
    while len(results) < 200:
        publisher.wait(1)
        results += publisher.take()
    node.ctl("close_all_connections", "on purpose")
    results += settle(publisher)
    assert Counter(r.send.tag for r in results) == Counter(s.tag for s in sends)
    counts = Counter((r.outcome, r.error) for r in results)
    assert set(counts) <= {
        (CONFIRMED, ""),
        (UNKNOWN, "ConnectionLost"),
        (UNSENT, ""),
        (ROAD, "BrokerUnreachable"),
    }
    until_usable(publisher)
    assert outcomes(send_all(publisher, [[again := message(exchange)]]), [again]) == [CONFIRMED]
    came = {d.message_id for d in contents(broker, queue)}
    assert {r.send.message_id for r in results if r.outcome is CONFIRMED} <= came
    assert not {r.send.message_id for r in results if r.outcome in (UNSENT, ROAD)} & came


def test_a_broker_that_restarts_is_found_again(
    private_rabbitmq: PrivateRabbitMQ,
    publish: Callable[..., Publisher],
    exchange: str,
    wait_until: Callable[..., object],
) -> None:
    node = private_rabbitmq
    made = Queue(f"{exchange}-shop", ("shop.#",))
    broker = RabbitMQ(node.url, exchange)
    assert broker.apply_topology([made]) == []
    publisher = publish(node.url)
    until_usable(publisher)
    before = [message(exchange) for _ in range(20)]
    assert set(outcomes(send_all(publisher, each_alone(before)), before)) == {CONFIRMED}
    node.stop()
    wait_until(lambda: publisher.state.name == "down")
    down = [message(exchange)]
    assert outcomes(send_all(publisher, [down]), down) == [ROAD]
    node.start()
    until_usable(publisher)
    after = [message(exchange) for _ in range(20)]
    assert set(outcomes(send_all(publisher, each_alone(after)), after)) == {CONFIRMED}
    assert {d.message_id for d in contents(broker, made)} == {s.message_id for s in before + after}


def test_a_frozen_broker_is_given_up_after_the_confirm_timeout(
    private_rabbitmq: PrivateRabbitMQ,
    publish: Callable[..., Publisher],
    exchange: str,
    wait_until: Callable[..., object],
) -> None:
    node = private_rabbitmq
    publisher = publish(node.url, confirm_timeout=1.5)
    until_usable(publisher)
    made = Queue(f"{exchange}-shop", ("shop.#",))
    assert RabbitMQ(node.url, exchange).apply_topology([made]) == []
    warm = message(exchange)
    assert outcomes(send_all(publisher, [[warm]]), [warm]) == [CONFIRMED]
    node.freeze()
    try:
        lane = [message(exchange), message(exchange)]
        began = time.monotonic()
        results = send_all(publisher, [lane])
        assert 1.4 < time.monotonic() - began < 10
        assert outcomes(results, lane) == [UNKNOWN, UNSENT]
        assert results[lane[0].tag].error == "ConfirmTimeout"
        began = time.monotonic()
        publisher.close(2)
        assert time.monotonic() - began < 3
    finally:
        node.thaw()


def test_a_broker_that_stops_reading_fills_no_buffer_that_is_sent_after_the_deadline(
    private_rabbitmq: PrivateRabbitMQ, publish: Callable[..., Publisher], exchange: str
) -> None:
    node = private_rabbitmq
    queue = Queue(f"{exchange}-shop", ("shop.#",), prefetch=1000)
    broker = RabbitMQ(node.url, exchange)
    assert broker.apply_topology([queue]) == []
    publisher = publish(node.url, window=50_000)
    until_usable(publisher)
    warm = message(exchange)
    assert outcomes(send_all(publisher, [[warm]]), [warm]) == [CONFIRMED]
    sends = [message(exchange, body=b"x" * 100_000) for _ in range(400)]  # 40 MB: more than the kernel keeps
    node.freeze()
    try:
        publisher.submit(each_alone(sends), lease_clock() + 1)
        results: dict[str, Outcome] = {}
        until = time.monotonic() + 10
        while len(results) < 100 and time.monotonic() < until:
            publisher.wait(0.5)
            results.update({result.send.tag: result.outcome for result in publisher.take()})
    finally:
        node.thaw()
    assert set(results.values()) == {UNSENT}
    results.update({result.send.tag: result.outcome for result in settle(publisher)})
    counts = Counter(results.values())
    assert counts[CONFIRMED] + counts[UNSENT] == 400
    confirmed = {send.message_id for send in sends if results[send.tag] is CONFIRMED}
    assert {d.message_id for d in contents(broker, queue)} == confirmed | {warm.message_id}


def test_a_publisher_of_a_frozen_broker_closes_in_time(
    private_rabbitmq: PrivateRabbitMQ, publish: Callable[..., Publisher], exchange: str
) -> None:
    node = private_rabbitmq
    publisher = publish(node.url)
    until_usable(publisher)
    node.freeze()
    try:
        publisher.submit([[message(exchange)]], later())
        began = time.monotonic()
        publisher.close(2)
        assert time.monotonic() - began < 3
    finally:
        node.thaw()


def test_a_blocked_broker_gets_nothing_new_and_the_confirm_timer_stands_still(
    private_rabbitmq: PrivateRabbitMQ,
    publish: Callable[..., Publisher],
    exchange: str,
    wait_until: Callable[..., object],
) -> None:
    node = private_rabbitmq
    made = Queue(f"{exchange}-shop", ("shop.#",))
    broker = RabbitMQ(node.url, exchange)
    assert broker.apply_topology([made]) == []
    publisher = publish(node.url, confirm_timeout=1)
    until_usable(publisher)
    node.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    first = message(exchange)
    publisher.submit([[first]], later())  # RabbitMQ says that it blocks when something is published
    wait_until(lambda: publisher.state.name == "blocked")
    assert "memory" in publisher.state.detail
    lane = [message(exchange), message(exchange)]
    publisher.submit([lane], later())
    results = {}
    wait_until(lambda: results.update({r.send.tag: r for r in publisher.take()}) or len(results) >= 2)
    assert outcomes(results, lane) == [ROAD, UNSENT]
    assert results[lane[0].tag].error == "BrokerBlocked"
    time.sleep(1.5)  # longer than the confirm time-out
    assert publisher.state.name == "blocked"
    assert publisher.outstanding == 1
    node.ctl("set_vm_memory_high_watermark", "0.9")
    assert [(r.send.tag, r.outcome) for r in settle(publisher)] == [(first.tag, CONFIRMED)]
    until_usable(publisher)
    assert [d.message_id for d in contents(broker, made)] == [first.message_id]


def test_a_message_above_the_brokers_limit_is_invalid_alone(
    private_rabbitmq: PrivateRabbitMQ, publish: Callable[..., Publisher], exchange: str
) -> None:
    node = private_rabbitmq
    made = Queue(f"{exchange}-shop", ("shop.#",))
    assert RabbitMQ(node.url, exchange).apply_topology([made]) == []
    node.ctl("eval", "application:set_env(rabbit, max_message_size, 1000000).")
    publisher = publish(node.url)
    until_usable(publisher)
    sends = [message(exchange), message(exchange, body=b"x" * 1_500_000), message(exchange)]
    results = send_all(publisher, each_alone(sends))
    assert outcomes(results, sends) == [CONFIRMED, INVALID, CONFIRMED]
    result = results[sends[1].tag]
    assert result.error == "MessageTooLarge"
    assert "1500000" in result.detail
    assert "1000000" in result.detail


CRASHING = """
import sys
import django
django.setup()
from outbox_core.clock import lease_clock
from outbox_core.transports.rabbitmq import RabbitMQ
from tests.integration.carrying import each_alone, message, until_usable
url, exchange = sys.argv[1:]
publisher = RabbitMQ(url, exchange).publisher()
publisher.open()
until_usable(publisher)
publisher.submit(each_alone(message(exchange, body=b"x" * 1000) for _ in range(400)), lease_clock() + 60)
while True:
    publisher.wait(1)
    for result in publisher.take():
        print(result.outcome, flush=True)
"""


def test_the_crash_point_published_is_passed_when_the_batch_has_left_and_no_confirm_was_seen(
    amqp: str, queue: Queue, exchange: str
) -> None:
    env = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "OUTBOARD_SPAWNED": "1",
        "PYTHONPATH": str(Path.cwd()), "OUTBOX_ALLOW_CRASH": "1", "OUTBOX_CRASH_AT": "published",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CRASHING, amqp, exchange], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout == ""
    # A socket that is closed with confirms unread is reset, and a reset may overtake the last of what was written.
    assert 0 < len(contents(RabbitMQ(amqp, exchange), queue)) <= 400
