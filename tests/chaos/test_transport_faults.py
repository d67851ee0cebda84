"""A bad line between publisher and RabbitMQ, and bad messages among good ones, at random: the results stay true."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import pytest

from outbox_core.clock import lease_clock
from outbox_core.transports.base import Outcome, Publisher, Queue, Result, Send
from outbox_core.transports.rabbitmq import RabbitMQ
from tests.integration.carrying import contents, message

pytestmark = pytest.mark.pair("real")

NOT_THERE = (Outcome.UNSENT, Outcome.ROAD, Outcome.INVALID, Outcome.RETURNED)


class Line:
    """A TCP proxy that can be cut, made to swallow what the broker says (`mute`), or hold up what is sent (`stall`)."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target, self.mute, self.stall, self.closed = target, False, False, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self.closed = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self.closed:
            with suppress(OSError):
                near, _ = self._listener.accept()
                far = socket.create_connection(self.target)
                self._sockets += [near, far]
                threading.Thread(target=self._carry, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, True), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, from_broker: bool) -> None:
        with suppress(OSError):
            while data := source.recv(16384):
                while self.stall and not from_broker and not self.closed:
                    time.sleep(0.02)
                if not (self.mute and from_broker):
                    sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def line(amqp: str) -> Iterator[Line]:
    parts = urlsplit(amqp)
    made = Line((parts.hostname or "", parts.port or 5672))
    yield made
    made.close()


def some_message(exchange: str, queue: str, rng: random.Random) -> Send:
    """Mostly a good one."""
    kind, body = rng.random(), b"x" * rng.choice([0, 50, 500, 9000])
    if kind < 0.01:
        return message(exchange, "nowhere.at_all", body=body)
    if kind < 0.012:
        return message(exchange, headers={"CC": "not a list"}, body=body)
    if kind < 0.02:
        return message(exchange, headers={"stack": "x" * 9000}, body=body)
    if kind < 0.03:
        return message(f"{exchange}-missing", body=body)
    if kind < 0.1:
        return message("", routing_key=queue, body=body)
    return message(exchange, body=body)


class Run:
    """Submits at random, lets things go wrong at random, and keeps what came back."""

    def __init__(
        self, publisher: Publisher, line: Line, exchange: str, queue: str, rng: random.Random
    ) -> None:
        self.publisher, self.line, self.exchange, self.queue, self.rng = publisher, line, exchange, queue, rng
        self.lanes: list[tuple[int, list[Send]]] = []  # with the number of fences before each
        self.results: dict[str, list[Result]] = defaultdict(list)
        self.epoch = 0

    def go(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        fault_at = time.monotonic() + 0.5
        while time.monotonic() < end:
            self.submit()
            self.take(0.05)
            if time.monotonic() > fault_at:
                fault_at = time.monotonic() + self.rng.uniform(0.2, 1)
                self.misbehave()

    def submit(self) -> None:
        """Some lanes, if there is room; now and then without a connection too."""
        rng = self.rng
        if self.publisher.outstanding < 400 and (self.publisher.state.usable or rng.random() < 0.02):
            lengths = [rng.choice([1, 1, 1, 5]) for _ in range(50)]
            new = [[some_message(self.exchange, self.queue, rng) for _ in range(n)] for n in lengths]
            self.lanes += [(self.epoch, lane) for lane in new]
            self.publisher.submit(new, lease_clock() + rng.choice([0.05, 5, 5, 5]))

    def take(self, patience: float) -> None:
        self.publisher.wait(patience)
        for result in self.publisher.take():
            self.results[result.send.tag].append(result)

    def misbehave(self) -> None:
        fault = self.rng.choice(["cut", "mute", "stall", "fence", "late", "nothing", "nothing"])
        self.line.mute, self.line.stall = fault == "mute", fault == "stall"
        if fault == "cut":
            self.line.cut()
        elif fault == "fence":
            self.publisher.fence()
            self.epoch += 1
        elif fault == "late":
            self.publisher.extend(0)

    def finish(self) -> None:
        """Everything works again, so everything is answered."""
        self.line.mute = self.line.stall = False
        self.publisher.extend(lease_clock() + 60)
        until = time.monotonic() + 30
        while self.publisher.outstanding and time.monotonic() < until:
            self.take(0.2)
        assert self.publisher.outstanding == 0
        self.take(1)  # stale confirms

    def check(self, came: list[str]) -> None:
        """Each message has one result, which says what is in the queue; each lane stopped where it had to."""
        copies, place = Counter(came), {id_: n for n, id_ in reversed(list(enumerate(came)))}
        for epoch, lane in self.lanes:
            found = [self.results[send.tag] for send in lane]
            assert all(len(one) == 1 or (not one and epoch != self.epoch) for one in found)
            for result in itertools.chain(*found):
                self.check_one(result, copies[result.send.message_id])
            outcomes = [one[0].outcome if one else None for one in found]
            after = itertools.dropwhile(lambda outcome: outcome is Outcome.CONFIRMED, outcomes)
            assert set(list(after)[1:]) <= {Outcome.UNSENT, None}
            firsts = [place[send.message_id] for send in lane if send.message_id in place]
            assert firsts == sorted(firsts)

    @staticmethod
    def check_one(result: Result, copies: int) -> None:
        assert result.outcome is not Outcome.CONFIRMED or copies >= 1
        assert result.outcome not in NOT_THERE or copies == 0
        assert copies <= 1 or result.detail


@pytest.mark.parametrize("seed", range(3))
def test_each_message_has_one_result_and_it_is_true(
    amqp: str, exchange: str, line: Line, scale: Callable[[int], int], seed: int
) -> None:
    queue = Queue(f"{exchange}-shop", ("shop.#",), prefetch=1000)
    assert RabbitMQ(amqp, exchange).apply_topology([queue]) == []
    parts = urlsplit(amqp)
    netloc = f"{parts.username}:{parts.password}@127.0.0.1:{line.port}"
    url = urlunsplit(parts._replace(netloc=netloc, query="frame_max=8192&heartbeat=4"))
    publisher = RabbitMQ(url, exchange, window=200, confirm_timeout=1.5).publisher()
    publisher.open()
    run = Run(publisher, line, exchange, queue.name, random.Random(seed))
    try:
        run.go(max(3, scale(30)))
        run.finish()
    finally:
        publisher.close()
    run.check([delivery.message_id or "" for delivery in contents(RabbitMQ(amqp, exchange), queue)])
    assert sum(one[0].outcome is Outcome.CONFIRMED for one in run.results.values() if one) > 100
