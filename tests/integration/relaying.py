"""What the relay's tests share: a queue to relay into, messages, and what arrived."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from django.db import connections, transaction

from outbox_core import Outgoing, publish_many
from outbox_core.models import Lease, Message, Pending
from outbox_core.outbox.dispatcher import Dispatcher
from outbox_core.shutdown import Stop
from outbox_core.transports import transport
from outbox_core.transports.base import Delivery, Queue
from tests.processes import wait_until


def bind(exchange: str, *patterns: str) -> Queue:
    """A queue of this test's own, declared on the broker of the pair."""
    queue = Queue(f"{exchange}-arrivals", patterns or ("#",), prefetch=60_000)
    assert transport().apply_topology([queue]) == []
    return queue


def arrivals(queue: Queue, expected: int, timeout: float = 30) -> list[Delivery]:
    """Everything that stands in the queue, in order: waits for `expected`, then until nothing more comes."""
    consumer = transport().consumer([queue])
    consumer.open()
    found: list[Delivery] = []

    def take(timeout: float) -> list[Delivery]:
        taken = consumer.receive(timeout)
        consumer.ack(taken)  # at once: there may be more than the prefetch
        found.extend(taken)
        return taken

    def all_there() -> bool:
        take(0.5)
        return len(found) >= expected

    try:
        wait_until(all_there, timeout, every=0, what=f"{expected} messages in {queue.name}")
        while take(0.7):
            pass
    finally:
        consumer.close()
    return found


def publish_numbered(count: int, keys: int = 0, type: str = "shop.sold", size: int = 0) -> None:
    """Commit `count` messages {"n": 0..}, the n-th with key `k<n % keys>` if there are keys."""
    filling = "x" * size
    with transaction.atomic():
        publish_many(
            Outgoing(type, {"n": n, "filling": filling}, key=f"k{n % keys}" if keys else "")
            for n in range(count)
        )


def relay(**changes: Any) -> int:
    """Run a dispatcher here until nothing is due; how many were confirmed."""
    return Dispatcher("default", changes.pop("name", "relay"), **changes).run(Stop(), once=True)


@contextmanager
def running(name: str = "relay") -> Iterator[Dispatcher]:
    """A dispatcher in a thread of this process."""
    stop, dispatcher = Stop(), Dispatcher("default", name)

    def run() -> None:
        try:
            dispatcher.run(stop)
        finally:
            connections.close_all()

    thread = Thread(target=run)
    thread.start()
    try:
        yield dispatcher
    finally:
        stop.set()
        thread.join(15)
    assert not thread.is_alive()


def first_copies(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Each message once, where it came first."""
    seen: dict[str | None, Delivery] = {}
    for delivery in deliveries:
        seen.setdefault(delivery.message_id, delivery)
    return list(seen.values())


def positions_by_key(deliveries: Iterable[Delivery]) -> dict[str, list[int]]:
    """The positions of the messages of each key, as they arrived."""
    found: dict[str, list[int]] = defaultdict(list)
    for delivery in deliveries:
        found[delivery.headers["outbox-key"]].append(delivery.headers["outbox-position"])
    return found


def copies(deliveries: Iterable[Delivery]) -> Counter[str | None]:
    """How often each message id arrived."""
    return Counter(delivery.message_id for delivery in deliveries)


def settled() -> bool:
    """Nothing is owed to the broker any more."""
    return not Pending.objects.exists()


def alone() -> bool:
    """No dispatcher holds a lease."""
    return not Lease.objects.exists()


def known_ids() -> set[str]:
    """The ids of all messages, as text."""
    return {str(id_) for id_ in Message.objects.values_list("message_id", flat=True)}
