"""What the engine asks of a broker. Two transports stand behind it, and one suite tests both.

Sending. A publisher takes *lanes*: lists of messages of which the next is sent only when the broker
confirmed the one before, so that first copies arrive in order. Lanes run beside each other, up to a
window of unconfirmed messages. Every message that was submitted comes back exactly once as a Result.

Receiving. A consumer is given queues and hands deliveries over, each to be acked once it is settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Send:
    """One message on its way out. `tag` is the engine's own handle and comes back in the Result."""

    tag: Any
    message_id: str
    exchange: str
    routing_key: str
    body: bytes
    type: str = ""
    timestamp: int = 0  # seconds since 1970
    correlation_id: str = ""
    app_id: str = ""
    content_type: str = "application/json"
    mandatory: bool = True
    headers: Mapping[str, Any] = field(default_factory=dict)
    again: Mapping[str, Any] = field(default_factory=dict)  # headers that a second send of it has instead

    @property
    def repeated(self) -> Send:
        """As it goes out when the transport itself has to send it for the second time."""
        return replace(self, headers={**self.headers, **self.again})


class Outcome(StrEnum):
    """What became of one submitted message."""

    CONFIRMED = "confirmed"  # the broker has taken responsibility
    RETURNED = "returned"  # confirmed, but no queue was bound: of the message
    REFUSED = "refused"  # exchange missing, access refused, 406: of the message, may heal
    INVALID = "invalid"  # can never be sent: too large, bad header or property
    ROAD = "road"  # broker down, blocked, full: certainly not taken, and not the message's fault
    UNKNOWN = "unknown"  # written, no confirm seen: maybe sent
    UNSENT = "unsent"  # never written: behind a failed one in its lane, past the deadline, or fenced


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one Send. `stale` says that it was submitted before the last `fence()`; `twice`, that it went out
    two times, the second time as `send.repeated`, and that nobody knows what became of the first."""

    send: Send
    outcome: Outcome
    error: str = ""  # a class name: Unroutable, ExchangeNotFound, AccessRefused, ConnectionLost, ...
    detail: str = ""  # one sentence for people, naming exchange and routing key
    stale: bool = False
    twice: bool = False


@dataclass(frozen=True, slots=True)
class BrokerState:
    """How the road to the broker is: `connecting`, `connected`, `blocked` or `down`, with the reason."""

    name: str
    detail: str = ""
    since: datetime | None = None

    @property
    def usable(self) -> bool:
        return self.name == "connected"


class Publisher(Protocol):
    """The sending side. One thread calls its methods; only `wait` and `close` wait for the broker."""

    def open(self) -> None:
        """Start connecting, in a thread of its own if need be, and return at once. Reconnects until `close`."""

    def submit(self, lanes: Sequence[Sequence[Send]], deadline: float) -> None:
        """Queue the lanes. Nothing of them, or of what is queued, is handed to the connection after `deadline`
        (`lease_clock()`, seconds); what is left then comes back UNSENT. Each call replaces the deadline for all."""

    def extend(self, deadline: float) -> None:
        """Set a new deadline for what is already queued."""

    def take(self) -> list[Result]:
        """The results since the last call."""

    def wait(self, timeout: float) -> bool:
        """Block until there are results or the broker's state changed, at most `timeout` seconds. True if so."""

    def wake(self) -> None:
        """End a running or the next `wait` (safe from any thread and from a signal handler)."""

    def fence(self) -> None:
        """The lease is lost: drop what was not written (no Result for it any more); confirms of what was
        written still come back, as `stale` results with outcome CONFIRMED or RETURNED only."""

    @property
    def outstanding(self) -> int:
        """How many submitted messages have no Result yet (fenced ones not counted)."""

    @property
    def state(self) -> BrokerState: ...

    def close(self, timeout: float = 5.0) -> None:
        """Stop the thread and the connection. What has no Result by then is the caller's to count as maybe sent."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that came in from a queue. `handle` is the transport's own, for ack and release."""

    handle: Any
    queue: str
    body: bytes
    message_id: str | None
    type: str
    exchange: str
    routing_key: str
    redelivered: bool
    headers: Mapping[str, Any]
    content_type: str = ""
    content_encoding: str = ""
    correlation_id: str = ""
    app_id: str = ""
    timestamp: int | None = None  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue named after its consumer, and the types that it is bound to on the main exchange."""

    name: str
    patterns: tuple[str, ...]
    prefetch: int = 100
    single_active: bool = False  # one active consumer at a time, for ordered=True


class Consumer(Protocol):
    """The receiving side. One thread calls these; heartbeats are served in a thread of the transport's own."""

    def open(self) -> None:
        """Start connecting, declare the queues and bindings, consume. Keeps reconnecting until `close`."""

    def receive(self, timeout: float) -> list[Delivery]:
        """The deliveries that have come, in order per queue; waits up to `timeout` seconds for the first."""

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Settle. An ack for a connection that is gone does nothing: the broker delivers again."""

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """Give back unprocessed (they are delivered again, flagged redelivered)."""

    def wake(self) -> None:
        """End a running or the next `receive` (safe from any thread and from a signal handler)."""

    @property
    def state(self) -> BrokerState: ...

    @property
    def problems(self) -> Mapping[str, str]:
        """Queue name -> why it is not consumed (a mismatch in its declaration, access refused). Others go on."""

    def close(self, timeout: float = 5.0) -> None:
        """Stop consuming and leave. Unacked deliveries go back to their queues."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which the broker's topology differs from the code's."""

    kind: str  # exchange, queue, binding
    name: str
    detail: str


class Transport(Protocol):
    """One broker. `using` is the database alias (the loopback broker lives in it)."""

    name: str

    def publisher(self) -> Publisher: ...

    def consumer(self, queues: Sequence[Queue]) -> Consumer: ...

    def check_topology(self, queues: Sequence[Queue]) -> list[Difference]:
        """What is missing or differs; changes nothing. Raises TransportError if the broker can't be reached."""

    def apply_topology(
        self, queues: Sequence[Queue], gone: Sequence[tuple[str, str]] = ()
    ) -> list[Difference]:
        """Declare exchange, queues and bindings idempotently, and unbind `gone` (queue, pattern). Returns what could
        not be done (a mismatch that only a person may resolve)."""
