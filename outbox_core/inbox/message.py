"""A message as it came in, and the object that a handler gets.

Nothing is trusted: a delivery may come from any producer. `arrive` reads what can be read and never raises; what makes
a delivery impossible to handle is a sentence in `problem`, or raised as Undecodable once its body is needed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from outbox_core import envelope
from outbox_core.inbox.body import decode
from outbox_core.transports.base import Delivery

SHORT = 255  # bytes: what ids, types and keys may take up
INT32, INT64 = 2**31, 2**63


@dataclass(frozen=True, slots=True)
class Arrived:
    """A delivery and what it says of itself. `id` is never empty: one without a usable id has a random one here.

    `anonymous` says that the id is such a random one, so that a second copy cannot be recognised. `problem` says why
    no handler can be given it, if that is clear from its properties alone.
    """

    delivery: Delivery
    envelope: envelope.Envelope
    id: str
    anonymous: bool
    type: str
    key: str
    source: str
    attempt: int
    position: int | None
    digest: str
    problem: str


def arrive(delivery: Delivery, id_: str = "") -> Arrived:
    """What a delivery says of itself, brought within the limits that the inbox can store. `id_`: the random one that
    it was given when it came first."""
    said = envelope.read(delivery)
    if id_:
        said = replace(said, id=id_)
    usable = bool(said.id) and fits(said.id or "")
    return Arrived(
        delivery=delivery,
        envelope=said,
        id=said.id if usable and said.id else str(uuid.uuid4()),
        anonymous=not usable,
        type=said.type,
        key=said.key,
        source=said.source,
        attempt=min(max(said.attempt, 1), INT32 - 1),
        position=said.position if said.position is not None and -INT64 <= said.position < INT64 else None,
        digest=envelope.digest(delivery.body),
        problem=_problem(said),
    )


def _problem(said: envelope.Envelope) -> str:
    for field, value in (
        ("id", said.id or "-"),
        ("type", said.type),
        ("key", said.key),
        ("source", said.source),
    ):
        if not storable(value):
            return f"{field} holds a character that is no text (NUL or a lone surrogate)"
        if (size := len(value.encode())) > SHORT:
            return f"{field} is {size} bytes long, but the limit is {SHORT}"
    return "" if said.type else "type is empty, and so is the routing key"


def fits(text: str) -> bool:
    """Whether a column of 255 bytes can store the text."""
    return storable(text) and len(text.encode()) <= SHORT


def storable(text: str) -> bool:
    """Whether both databases can store the text."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


class InboxMessage:
    """What a handler gets. `id` is text, since ids of other producers need not be UUIDs.

    `redelivered`, `attempt` and `position` are what the broker and the producer said of this copy; `run` counts the
    runs of the handler for it. `payload` has `int` and `Decimal` for numbers, with every digit.
    """

    def __init__(self, arrived: Arrived, consumer: str, run: int = 1) -> None:
        said, delivery = arrived.envelope, arrived.delivery
        self.id: str = arrived.id
        self.type: str = arrived.type
        self.key: str = arrived.key
        self.headers: Mapping[str, Any] = said.headers
        self.redelivered: bool = delivery.redelivered
        self.attempt: int = arrived.attempt
        self.position: int | None = arrived.position
        self.correlation_id: str = said.correlation_id
        self.causation_id: str = said.causation_id
        self.source: str = arrived.source
        self.published_at: datetime | None = said.published_at
        self.consumer: str = consumer
        self.run: int = run
        self._delivery = delivery

    @cached_property
    def payload(self) -> Any:
        """The body's value. Raises Undecodable; the receiver asks for it first, so no handler sees that."""
        return decode(self._delivery)

    def __repr__(self) -> str:
        return f"<InboxMessage {self.type} {self.id} for {self.consumer}>"
