"""A message that is about to be published, checked against every limit before any SQL runs.

The limits are in bytes of UTF-8, as AMQP's short strings count them, and are the same on both databases.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import simplejson
import uuid6

from outbox_core import backoff, context, jsontext, tracing
from outbox_core.conf import settings
from outbox_core.envelope import digest, reserved, route
from outbox_core.errors import InvalidMessage
from outbox_core.models import PARTITIONS

SHORT = 255  # bytes: an AMQP short string
MAX_DESTINATION = 2 * SHORT + 1
MAX_HEADERS = 64 * 1024  # bytes of their JSON text
INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The arguments of `publish()`, as one item of `publish_many()`."""

    type: str
    payload: object
    key: str = ""
    destination: str | None = None
    headers: Mapping[str, Any] | None = None
    message_id: UUID | str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    delay: object = None
    mandatory: bool | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """An Outgoing whose every part is within its limits, with ids and trace filled in."""

    message_id: UUID
    type: str
    key: str
    destination: str
    payload: str
    digest: str
    headers: dict[str, Any]
    correlation_id: str
    causation_id: str
    traceparent: str
    source: str
    mandatory: bool
    delay: float  # seconds; 0 for now

    @property
    def partition(self) -> int:
        return partition_of(self.key, self.message_id)


def partition_of(key: str, message_id: object) -> int:
    """The part of the queue that a message stands in: all of one key in one part."""
    return zlib.crc32((key or str(message_id)).encode()) % PARTITIONS


def check(item: Outgoing) -> Checked:
    """Fill in what was left out and check everything. Raises InvalidMessage; touches no database."""
    incoming = context.current()
    type_ = _short("type", item.type)
    message_id = _message_id(item.message_id, incoming)
    payload = _payload(item.payload)
    caused_by = incoming.message_id if incoming else ""
    root = incoming.correlation_id if incoming else ""
    return Checked(
        message_id=message_id,
        type=type_,
        key=_short("key", item.key, empty=True),
        destination=_destination(item.destination, type_),
        payload=payload,
        digest=digest(payload.encode()),
        headers=_headers(item.headers),
        correlation_id=_short("correlation_id", item.correlation_id or root or str(message_id)),
        causation_id=_short("causation_id", item.causation_id or caused_by, empty=True),
        traceparent=tracing.current_traceparent(),
        source=_short("source", settings.SOURCE),
        mandatory=True if item.mandatory is None else bool(item.mandatory),
        delay=0.0 if item.delay is None else backoff.seconds(item.delay, "delay"),
    )


def _message_id(given: UUID | str | None, incoming: context.Incoming | None) -> UUID:
    if isinstance(given, UUID):
        return given
    if given is not None:
        try:
            return UUID(str(given))
        except ValueError:
            raise InvalidMessage("message_id", "a UUID", repr(given)[:100]) from None
    if incoming:  # a repeated run of the handler publishes the same ids
        return incoming.next_id()
    return UUID(int=uuid6.uuid7().int)


def _short(field: str, value: object, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise InvalidMessage(field, "text", type(value).__name__)
    value = jsontext.text(value, field)
    if not value and not empty:
        raise InvalidMessage(field, "text that is not empty", "nothing")
    if (size := len(value.encode())) > SHORT:
        raise InvalidMessage(field, f"{SHORT} bytes", f"{size} bytes")
    return value


def _destination(given: str | None, type_: str) -> str:
    destination = settings.EXCHANGE if given is None else given
    if not isinstance(destination, str) or not destination:
        raise InvalidMessage("destination", "exchange or exchange/routing_key", repr(destination)[:100])
    exchange, routing_key = route(destination, type_)
    _short("exchange", exchange, empty=True)
    _short("routing key", routing_key)
    return destination


def _payload(value: object) -> str:
    text = jsontext.dump(value, "payload")
    if (size := len(text.encode())) > settings.MAX_PAYLOAD_BYTES:
        raise InvalidMessage("payload", f"{settings.MAX_PAYLOAD_BYTES} bytes", f"{size} bytes")
    return text


def _headers(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidMessage("headers", "a mapping", type(given).__name__)
    for name in given:
        if isinstance(name, str) and reserved(name):
            raise InvalidMessage(f"headers.{name}", "names that are not reserved", name)
    headers: dict[str, Any] = _header({**given}, "headers", 1)
    size = len(simplejson.dumps(headers, ensure_ascii=False).encode())
    if size > MAX_HEADERS:
        raise InvalidMessage("headers", f"{MAX_HEADERS} bytes", f"{size} bytes")
    return headers


def _header(value: object, field: str, depth: int) -> Any:
    if depth > jsontext.MAX_DEPTH:
        raise InvalidMessage(field[:200], f"{jsontext.MAX_DEPTH} levels", "deeper")
    match value:
        case bool():
            return value
        case str():
            return jsontext.text(value, field)
        case int():
            if not -INT64 <= value < INT64:
                raise InvalidMessage(field, "a 64-bit integer", "a longer number")
            return int(value)
        case list() | tuple():
            return [_header(v, f"{field}[{i}]", depth + 1) for i, v in enumerate(value)]
        case dict():
            return {
                _short(f"{field} (a name)", k): _header(v, f"{field}.{k}", depth + 1)
                for k, v in value.items()
            }
    raise InvalidMessage(field, "text, bool, 64-bit int, lists and dicts of these", type(value).__name__)
