"""The receiving side over AMQP: one channel for each queue, deliveries handed over to the caller's thread.

Acks are carried to the link's thread and written there, several in one frame where they are neighbours. The broker
delivers again what was not acked when a channel or the connection ended.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue

from pika import URLParameters

from outbox_core.transports.amqp_feed import Feed, Tenure
from outbox_core.transports.amqp_link import Link
from outbox_core.transports.amqp_wire import Wire
from outbox_core.transports.base import BrokerState, Delivery, Queue

log = logging.getLogger("outbox.transport")


class AmqpConsumer:
    """See `base.Consumer`."""

    def __init__(self, parameters: URLParameters, exchange: str, queues: Sequence[Queue]) -> None:
        self._exchange, self._queues = exchange, list(queues)
        self._link = Link(parameters, "consumer", up=self._up, down=self._down, changed=lambda: None)
        self._came: SimpleQueue[Delivery | None] = SimpleQueue()  # its put() may run in a signal handler
        self._feeds: list[Feed] = []
        self._problems: dict[str, str] = {}

    def open(self) -> None:
        self._link.start()

    def receive(self, timeout: float) -> list[Delivery]:
        until = time.monotonic() + timeout
        try:
            item = self._came.get(timeout=max(0.0, timeout))
            while item is not None and not _is_ours(item):  # its channel is gone: it will come again
                item = self._came.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            return []
        found = [item]
        try:
            while True:
                found.append(self._came.get_nowait())
        except Empty:
            return [one for one in found if one is not None and _is_ours(one)]

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        self._settle(deliveries, Tenure.ack)

    def release(self, deliveries: Iterable[Delivery]) -> None:
        self._settle(deliveries, Tenure.release)

    def wake(self) -> None:
        self._came.put(None)

    @property
    def state(self) -> BrokerState:
        return self._link.state

    @property
    def problems(self) -> Mapping[str, str]:
        return dict(self._problems)

    def close(self, timeout: float = 5.0) -> None:
        self._link.stop(timeout)
        self.wake()

    def _settle(self, deliveries: Iterable[Delivery], how: object) -> None:
        by_tenure: dict[Tenure, set[int]] = {}
        for delivery in deliveries:
            tenure, tag = delivery.handle
            by_tenure.setdefault(tenure, set()).add(tag)
        for tenure, tags in by_tenure.items():
            self._link.call(functools.partial(_if_alive, tenure, tags, how))

    def _up(self, wire: Wire) -> None:
        self._feeds = [
            Feed(
                wire,
                self._exchange,
                queue,
                deliver=self._came.put,
                report=self._report,
                later=self._link.later,
            )
            for queue in self._queues
        ]
        for feed in self._feeds:
            feed.begin()

    def _down(self, error: Exception | None, reason: str) -> None:
        for feed in self._feeds:
            feed.end()
        self._feeds = []

    def _report(self, queue: str, problem: str) -> None:
        if not problem:
            self._problems.pop(queue, None)
        elif self._problems.get(queue) != problem:
            self._problems[queue] = problem
            log.error("Queue %s is not consumed: %s", queue, problem, extra={"action": "queue_refused"})


def _is_ours(delivery: Delivery) -> bool:
    tenure: Tenure = delivery.handle[0]
    return tenure.alive


def _if_alive(tenure: Tenure, tags: set[int], how: object) -> None:
    if tenure.alive and tenure.channel.is_open:
        how(tenure, tags)  # type: ignore[operator]
