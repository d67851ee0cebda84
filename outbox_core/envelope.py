"""The wire format: how a Message becomes properties and headers, and what a delivery says of itself.

Headers follow CloudEvents 1.0, AMQP binding (`cloudEvents_*`), and W3C Trace Context (`traceparent`). Messages from
other producers lack most of it; `read` then fills in what is known and says that an id is missing. What a producer
says in its own words goes before the properties, which some libraries fill in anew at each sending: the attributes of
a CloudEvent, the `id` and `task` of a Celery task.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from outbox_core import cloudevents
from outbox_core.models.message import Message
from outbox_core.transports.base import Delivery, Send

VERSION = 1
RESERVED = ("outbox-", *cloudevents.PREFIXES)


def reserved(name: str) -> bool:
    """Header names that the envelope itself uses."""
    return name.startswith(RESERVED) or name == "traceparent"


def route(destination: str, type: str) -> tuple[str, str]:
    """`exchange` or `exchange/routing_key`; the routing key is the type unless named."""
    exchange, slash, key = destination.partition("/")
    return exchange, key if slash else type


def digest(body: bytes) -> str:
    """SHA-256, hex: how payloads are compared."""
    return hashlib.sha256(body).hexdigest()


class Stored(NamedTuple):
    """A message as `write` needs it, read without Django's models: building those takes longer than all the rest."""

    message_id: str
    type: str
    key: str
    destination: str
    payload: str
    headers_text: str  # their JSON
    correlation_id: str
    causation_id: str
    traceparent: str
    source: str
    mandatory: bool
    created_at: datetime

    @property
    def headers(self) -> dict[str, Any]:
        return {} if self.headers_text == "{}" else json.loads(self.headers_text)


def write(
    message: Message | Stored, tag: Any, *, attempt: int, position: int, late: bool = False,
    operation: int | None = None,
) -> Send:  # fmt: skip
    """The message as it goes to the broker. `attempt` counts sends (1 for the first), `position` is its place
    at the first send; `late` says that others of its key passed it, `operation` that a person resent it."""
    exchange, routing_key = route(message.destination, message.type)
    id_ = str(message.message_id)
    headers: dict[str, Any] = {
        **message.headers,
        "cloudEvents_specversion": "1.0",
        "cloudEvents_id": id_,
        "cloudEvents_source": message.source,
        "cloudEvents_type": message.type,
        "cloudEvents_time": message.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "outbox-attempt": attempt,
        "outbox-position": position,
        "outbox-version": VERSION,
    }
    if message.key:
        headers["cloudEvents_subject"] = headers["outbox-key"] = message.key
    if message.traceparent:
        headers["traceparent"] = message.traceparent
    if message.causation_id:
        headers["outbox-causation-id"] = message.causation_id
    if operation is not None:
        headers["outbox-operation"] = str(operation)
    if late:
        headers["outbox-late"] = 1
    return Send(
        tag=tag, message_id=id_, exchange=exchange, routing_key=routing_key, body=message.payload.encode(),
        type=message.type, timestamp=int(message.created_at.timestamp()), correlation_id=message.correlation_id,
        app_id=message.source, mandatory=message.mandatory, headers=headers,
        again={"outbox-attempt": attempt + 1},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a delivery says of itself, from whoever it came. `id` is None if its producer gave none."""

    id: str | None
    type: str
    key: str
    headers: Mapping[str, Any]  # without the reserved ones
    attempt: int
    position: int | None
    correlation_id: str
    causation_id: str
    source: str
    published_at: datetime | None
    operation: str
    late: bool
    foreign: bool = False  # not in our format


def read(delivery: Delivery) -> Envelope:
    """The envelope of a delivery. Never raises: a header of a wrong type counts as missing."""
    h = delivery.headers
    event = cloudevents.attributes(delivery)
    task = _task(h)
    return Envelope(
        id=_text(event.get("id")) or task.get("id") or delivery.message_id or None,
        type=_text(event.get("type")) or delivery.type or task.get("task") or delivery.routing_key,
        key=_text(h.get("outbox-key")) or _text(event.get("subject")),
        headers={name: value for name, value in h.items() if not reserved(name)},
        attempt=_whole(h.get("outbox-attempt")) or 1,
        position=_whole(h.get("outbox-position")),
        correlation_id=delivery.correlation_id,
        causation_id=_text(h.get("outbox-causation-id")),
        source=_text(event.get("source")) or delivery.app_id,
        published_at=_time(event.get("time"), delivery.timestamp),
        operation=_text(h.get("outbox-operation")),
        late=bool(h.get("outbox-late")),
        foreign="outbox-version" not in h,
    )


def _task(headers: Mapping[str, Any]) -> dict[str, str]:
    """The id and the name of a Celery task (message protocol 2), which has no message id."""
    found = {name: _text(headers.get(name)) for name in ("id", "task")}
    return found if all(found.values()) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time(value: object, timestamp: int | None) -> datetime | None:
    try:
        said = value if isinstance(value, datetime) else datetime.fromisoformat(_text(value))
        return said.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.fromtimestamp(timestamp, UTC) if timestamp is not None else None
    except (ValueError, OverflowError, OSError):
        return None
