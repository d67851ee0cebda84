"""What is being handled right now, so that what a handler publishes knows its cause.

`publish()` inside a handler takes correlation, causation and traceparent from here, and derives the outgoing id from
the incoming one: a handler that runs again publishes the same ids, so a repeated run can be seen and has no effect.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

NAMESPACE = uuid.UUID("6f7a1c5e-2b0d-5c3f-9f0e-0b5d6e7c8a91")
"""Of the ids that are derived here. Never change it: ids of a repeated run would differ."""


@dataclass(slots=True)
class Incoming:
    """The message that is being handled, and how many ids were derived from it in this run."""

    message_id: str
    consumer: str
    correlation_id: str
    traceparent: str
    using: str = "default"  # the alias of the handler's transaction: what it publishes belongs there
    numbers: int = field(default=0, init=False)

    def next_number(self) -> int:
        """1, 2, 3, ... within one run of the handler."""
        self.numbers += 1
        return self.numbers

    def next_id(self) -> uuid.UUID:
        """The id of the next message that this run publishes: uuid5 of (incoming id, consumer, n)."""
        return derived_id(self.message_id, self.consumer, self.next_number())


def derived_id(message_id: str, consumer: str, number: int) -> uuid.UUID:
    """uuid5 of (incoming id, consumer, n). No part holds a NUL, so no two triples give one name."""
    return uuid.uuid5(NAMESPACE, f"{message_id}\0{consumer}\0{number}")


_current: ContextVar[Incoming | None] = ContextVar("outbox_incoming", default=None)


def current() -> Incoming | None:
    """The message being handled in this thread or task, or None outside a handler."""
    return _current.get()


@contextmanager
def handling(incoming: Incoming) -> Iterator[Incoming]:
    """Within it, `current()` is `incoming`; afterwards what it was before, whatever happened."""
    token = _current.set(incoming)
    try:
        yield incoming
    finally:
        _current.reset(token)
