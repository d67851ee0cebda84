"""A delivery as a row: everything that came is kept in `Handling`, and can be made a delivery again.

AMQP headers hold more than JSON does (bytes, times, NUL in a text), and PostgreSQL's jsonb less (no NUL), so what has
no plain form is written as an object with one name that begins with `$`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from outbox_core.inbox.message import SHORT, Arrived, arrive, storable
from outbox_core.jsontext import MAX_DEPTH
from outbox_core.models import Handling
from outbox_core.transports.base import Delivery

NO_ID = "cannot_be_deduplicated"
_FIELDS = (
    "message_id",
    "type",
    "exchange",
    "routing_key",
    "content_type",
    "content_encoding",
    "correlation_id",
    "app_id",
    "timestamp",
)


def keep(arrived: Arrived, consumer: str, state: str, **fields: Any) -> Handling:
    """A new, unsaved row for a delivery. One without a usable id says so in its envelope, and has a random one."""
    delivery = arrived.delivery
    said = {name: pack(getattr(delivery, name)) for name in _FIELDS}
    said["redelivered"] = delivery.redelivered
    try:
        said["headers"] = pack(dict(delivery.headers))
    except RecursionError:
        said["headers_lost"] = "they are nested too deeply"
    if arrived.anonymous:
        said[NO_ID] = True
    return Handling(
        consumer=consumer,
        message_id=arrived.id,
        type=_cut(arrived.type),
        key=_cut(arrived.key),
        position=arrived.position,
        envelope=said,
        body=delivery.body,
        digest=arrived.digest,
        state=state,
        **fields,
    )


def restore(row: Handling) -> Delivery:
    """The delivery that a row was made of, but for the broker's handle on it. One without an id has the row's."""
    said = row.envelope
    fields = {name: unpack(said[name]) for name in _FIELDS if name in said}  # rows may be older than a field
    if said.get(NO_ID):
        fields["message_id"] = row.message_id
    headers = unpack(said.get("headers", {}))
    return Delivery(
        handle=None, queue=row.consumer, body=bytes(row.body), redelivered=said.get("redelivered", False),
        headers=headers, **fields,
    )  # fmt: skip


def arrived(row: Handling) -> Arrived:
    """What the delivery says of itself that a row was made of, under the id that it has there."""
    return arrive(restore(row), (row.message_id or "") if row.envelope.get(NO_ID) else "")


def attempt(row: Handling) -> int:
    """The `outbox-attempt` of the copy that a row was made of."""
    found = unpack(row.envelope.get("headers", {})).get("outbox-attempt")
    return found if isinstance(found, int) else 1


def pack(value: Any, depth: int = 0) -> Any:
    """An AMQP value as JSON that both databases store. Raises RecursionError beyond 100 levels."""
    if depth > MAX_DEPTH:
        raise RecursionError
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if isfinite(value) else {"$float": repr(value)}
        case str():
            return value if storable(value) else {"$text": _base64(value.encode("utf-8", "surrogatepass"))}
        case bytes() | bytearray() | memoryview():
            return {"$bytes": _base64(bytes(value))}
        case Decimal():
            return {"$decimal": str(value)}
        case datetime():
            return {"$time": value.isoformat()}
        case list() | tuple():
            return [pack(v, depth + 1) for v in value]
        case Mapping():
            if all(isinstance(k, str) and not k.startswith("$") and storable(k) for k in value):
                return {k: pack(v, depth + 1) for k, v in value.items()}
            return {"$items": [[pack(k), pack(v, depth + 1)] for k, v in value.items()]}
    return {"$other": repr(value)}


def unpack(value: Any) -> Any:
    """The value that was packed."""
    if isinstance(value, list):
        return [unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        return {k: unpack(v) for k, v in value.items()}
    ((name, content),) = value.items()
    match name:
        case "$float" | "$decimal":
            return float(content) if name == "$float" else Decimal(content)
        case "$text":
            return base64.b64decode(content).decode("utf-8", "surrogatepass")
        case "$bytes":
            return base64.b64decode(content)
        case "$time":
            return datetime.fromisoformat(content)
        case "$items":
            return {unpack(k): unpack(v) for k, v in content}
        case "$other":
            return content
    return {name: unpack(content)}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _cut(text: str) -> str:
    """What is shown of a text that may break the limits; the whole of it stands in the envelope."""
    text = text.encode("utf-8", "replace").decode().replace("\0", "\N{SYMBOL FOR NULL}")
    return text if len(text) <= SHORT else text[: SHORT - 1] + "…"
