"""What the transport tests share: messages to send, and waiting for what becomes of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from outbox_core.clock import lease_clock
from outbox_core.transports.base import Consumer, Delivery, Outcome, Publisher, Queue, Result, Send, Transport

PATIENCE = 20.0  # seconds that a test waits for something that should come at once
QUIET = 0.4  # seconds without a delivery after which a queue counts as empty


def message(exchange: str, type: str = "shop.sold", **changes: Any) -> Send:
    """A message as the engine would send it, with its own id as its tag unless another is given."""
    id_ = str(uuid.uuid4())
    fields: dict[str, Any] = {
        "tag": id_, "message_id": id_, "exchange": exchange, "routing_key": type, "body": b'{"n": 1}', "type": type,
        "timestamp": 1_767_225_600, "app_id": "outboard", "headers": {"outbox-attempt": 1, "outbox-key": ""},
    }  # fmt: skip
    return Send(**{**fields, **changes})


def later() -> float:
    """A deadline that no test reaches."""
    return lease_clock() + 600


def each_alone(sends: Iterable[Send]) -> list[list[Send]]:
    """One lane for each message."""
    return [[send] for send in sends]


def settle(publisher: Publisher, patience: float = PATIENCE) -> list[Result]:
    """All results, once none is outstanding any more."""
    until = time.monotonic() + patience
    results = publisher.take()
    while publisher.outstanding:
        assert time.monotonic() < until, (
            f"{publisher.outstanding} outstanding, {publisher.state}, {len(results)} results"
        )
        publisher.wait(0.5)
        results += publisher.take()
    return results + publisher.take()


def send_all(
    publisher: Publisher, lanes: Sequence[Sequence[Send]], deadline: float | None = None
) -> dict[Any, Result]:
    """Submit, wait, and give the results by tag. Each message must have exactly one."""
    publisher.submit(lanes, later() if deadline is None else deadline)
    results = settle(publisher)
    by_tag = {result.send.tag: result for result in results}
    assert len(by_tag) == len(results) == sum(len(lane) for lane in lanes)
    return by_tag


def outcomes(results: dict[Any, Result], sends: Iterable[Send]) -> list[Outcome]:
    """The outcomes of these messages, in their order."""
    return [results[send.tag].outcome for send in sends]


def until_usable(publisher: Publisher | Consumer, patience: float = PATIENCE) -> None:
    """Wait for the connection."""
    until = time.monotonic() + patience
    while not publisher.state.usable:
        assert time.monotonic() < until, publisher.state
        time.sleep(0.01)


def gather(consumer: Consumer, count: int, ack: bool = True, patience: float = PATIENCE) -> list[Delivery]:
    """The next `count` deliveries, acked."""
    found: list[Delivery] = []
    until = time.monotonic() + patience
    while len(found) < count:
        assert time.monotonic() < until, (
            f"{len(found)} of {count} came; {consumer.state}; {dict(consumer.problems)}"
        )
        came = consumer.receive(0.5)
        if ack:
            consumer.ack(came)
        found += came
    return found


def contents(transport: Transport, queue: Queue) -> list[Delivery]:
    """Everything that is in the queue, taken out of it."""
    consumer = transport.consumer([queue])
    consumer.open()
    try:
        until_usable(consumer)
        found: list[Delivery] = []
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < QUIET:
            if came := consumer.receive(QUIET):
                consumer.ack(came)
                found += came
                quiet_since = time.monotonic()
        return found
    finally:
        consumer.close()
