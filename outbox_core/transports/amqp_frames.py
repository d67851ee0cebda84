"""A message on its way out, as the bytes of its AMQP frames.

They are the bytes that pika's classes make, and pika makes whatever is rare. What is in every message is put
together here: pika's encoding took half of a dispatcher's time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pika import data, frame, spec

from outbox_core.transports.base import Send

OVERHEAD = 8  # bytes of a frame around its payload
SHORT = 255  # bytes that a short string may have
PERSISTENT = b"\x02"
BASIC = spec.Basic.INDEX
FLAGS = {name: getattr(spec.BasicProperties, f"FLAG_{name.upper()}") for name in (
    "content_type", "headers", "delivery_mode", "correlation_id", "message_id", "timestamp", "type", "app_id",
)}  # fmt: skip
FRAME, HEADER, END = struct.Struct(">BHI"), struct.Struct(">HHQ"), bytes([spec.FRAME_END])
LONG, U16, U32, U64 = struct.Struct(">cI"), struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")


class Unsendable(Exception):
    """A message that can't be written as AMQP frames. `error` is a class name for the Result."""

    def __init__(self, error: str, detail: str) -> None:
        self.error, self.detail = error, detail
        super().__init__(detail)


@lru_cache(maxsize=1024)
def _publish(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    """The first frame, which is the same for all messages of a road."""
    said = spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
    return bytes(frame.Method(channel, said).marshal())


def encode(send: Send, channel: int, frame_max: int) -> bytes:
    """All frames of one message. `frame_max` is what was agreed with the broker, 0 for no limit.
    Raises Unsendable naming the field, its size and the limit."""
    body = send.body
    try:
        method = _publish(channel, send.exchange, send.routing_key, send.mandatory)
        said = _properties(send)
    except Exception as error:  # pika raises whatever its encoder trips over
        raise _fault(send, error) from None
    size = HEADER.size + len(said)
    if frame_max and size + OVERHEAD > frame_max:
        raise Unsendable(
            "HeadersTooLarge",
            f"headers and properties: {size + OVERHEAD} bytes, but the broker's frame limit is {frame_max}",
        )
    pieces = [
        method,
        FRAME.pack(spec.FRAME_HEADER, channel, size),
        HEADER.pack(BASIC, 0, len(body)),
        said,
        END,
    ]
    room = frame_max - OVERHEAD if frame_max else len(body) or 1
    for at in range(0, len(body), room):
        part = body[at : at + room]
        pieces += (FRAME.pack(spec.FRAME_BODY, channel, len(part)), part, END)
    return b"".join(pieces)


def check_exchange(send: Send) -> None:
    """Raises Unsendable if the exchange can't even be asked for."""
    _check_text("exchange", send.exchange)


def _properties(send: Send) -> bytes:
    """The flags and values of the properties, in AMQP's order; an empty text is left out."""
    flags = FLAGS["headers"] | FLAGS["delivery_mode"]
    pieces = [b""]  # the flags come here
    if send.content_type:
        flags |= FLAGS["content_type"]
        pieces.append(_short(send.content_type))
    pieces += (_table(send.headers), PERSISTENT)
    if send.correlation_id:
        flags |= FLAGS["correlation_id"]
        pieces.append(_short(send.correlation_id))
    if send.message_id:
        flags |= FLAGS["message_id"]
        pieces.append(_short(send.message_id))
    if send.timestamp is not None:
        flags |= FLAGS["timestamp"]
        pieces.append(U64.pack(send.timestamp))
    if send.type:
        flags |= FLAGS["type"]
        pieces.append(_common(send.type))
    if send.app_id:
        flags |= FLAGS["app_id"]
        pieces.append(_common(send.app_id))
    pieces[0] = U16.pack(flags)
    return b"".join(pieces)


def _table(headers: Mapping[str, Any]) -> bytes:
    pieces: list[bytes] = []
    for name, value in headers.items():
        if type(value) is str:
            text = value.encode()
            pieces += (_common(name), LONG.pack(b"S", len(text)), text)
        else:
            pieces.append(_common(name))
            data.encode_value(pieces, value)
    inside = b"".join(pieces)
    return U32.pack(len(inside)) + inside


def _short(text: str) -> bytes:
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded  # ValueError beyond 255, which is AMQP's limit


_common = lru_cache(maxsize=1024)(_short)  # what many messages share: names of headers, types, sources


def _fault(send: Send, error: Exception) -> Unsendable:
    """Which field it was that could not be encoded."""
    try:
        for name in (
            "exchange",
            "routing_key",
            "message_id",
            "type",
            "correlation_id",
            "app_id",
            "content_type",
        ):
            _check_text(name, getattr(send, name))
        for header, value in send.headers.items():
            _check_header(header, value)
    except Unsendable as fault:
        return fault
    return Unsendable("BadProperty", f"a property has no AMQP form: {error!r:.500}")


def _check_text(name: str, value: str) -> None:
    try:
        size = len(value.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise Unsendable(
            "BadProperty", f"{name}: {type(value).__name__} has no AMQP form ({error!s:.200})"
        ) from None
    if size > SHORT:
        raise Unsendable("PropertyTooLong", f"{name}: {size} bytes, but the limit is {SHORT}")


def _check_header(name: str, value: object) -> None:
    try:
        spec.BasicProperties(headers={name: value}).encode()
    except Exception as error:
        reason = str(error) or type(error).__name__
        detail = f"header {name!r:.255}: {type(value).__name__} has no AMQP form ({reason:.200})"
        raise Unsendable("BadHeader", detail) from None
