"""The properties of a message that comes in, from the bytes of its AMQP frame.

They are read here and not by pika: its reader cuts floats to integers, and ends the connection at a header that it
can't read (a date in milliseconds, NaN, an unknown kind), so that one foreign message would stop a consumer for ever.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pika import frame, spec

TEXTS = (
    (15, "content_type"), (14, "content_encoding"), (13, "headers"), (12, "delivery_mode"), (11, "priority"),
    (10, "correlation_id"), (9, "reply_to"), (8, "expiration"), (7, "message_id"), (6, "timestamp"), (5, "type"),
    (4, "user_id"), (3, "app_id"), (2, "cluster_id"),
)  # fmt: skip
NUMBERS = {"delivery_mode": ">B", "priority": ">B", "timestamp": ">Q"}


def read_header_frame(buffer: bytes) -> tuple[int, frame.Header | None]:
    """The content header frame that `buffer` begins with, and its size; (0, None) if it is not all there."""
    if len(buffer) < spec.FRAME_HEADER_SIZE:
        return 0, None
    _, channel, size = struct.unpack_from(">BHI", buffer)
    end = spec.FRAME_HEADER_SIZE + size + spec.FRAME_END_SIZE
    if len(buffer) < end:
        return 0, None
    payload = buffer[spec.FRAME_HEADER_SIZE : end - 1]
    (body_size,) = struct.unpack_from(">Q", payload, 4)
    return end, frame.Header(channel, body_size, read_properties(payload[12:]))


def read_properties(encoded: bytes) -> spec.BasicProperties:
    """Properties as they came. What can't be read ends the reading: the rest counts as missing, nothing is raised."""
    found: dict[str, Any] = {}
    try:
        (flags,) = struct.unpack_from(">H", encoded)
        at = 2
        for bit, name in TEXTS:
            if not flags & 1 << bit:
                continue
            if name == "headers":
                found[name], at = _table(encoded, at)
            elif name in NUMBERS:
                (found[name],) = struct.unpack_from(NUMBERS[name], encoded, at)
                at += struct.calcsize(NUMBERS[name])
            else:
                found[name], at = _short(encoded, at)
    except (struct.error, IndexError):
        pass
    return spec.BasicProperties(**found)


def _short(encoded: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + encoded[at]
    return encoded[at + 1 : end].decode(errors="replace"), end


def _long(encoded: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">I", encoded, at)
    return encoded[at + 4 : at + 4 + size], at + 4 + size


def _table(encoded: bytes, at: int) -> tuple[dict[str, Any], int]:
    """A table. An entry of unknown kind hides those after it in its table, since no one knows how long it is."""
    (size,) = struct.unpack_from(">I", encoded, at)
    at, end = at + 4, at + 4 + size
    found: dict[str, Any] = {}
    while at < end:
        name, at = _short(encoded, at)
        try:
            found[name], at = _value(encoded, at)
        except (KeyError, struct.error, IndexError):
            break
    return found, end


def _array(encoded: bytes, at: int) -> tuple[list[Any], int]:
    (size,) = struct.unpack_from(">I", encoded, at)
    at, end = at + 4, at + 4 + size
    found: list[Any] = []
    while at < end:
        try:
            value, at = _value(encoded, at)
        except (KeyError, struct.error, IndexError):
            break
        found.append(value)
    return found, end


def _text(encoded: bytes, at: int) -> tuple[str | bytes, int]:
    value, at = _long(encoded, at)
    try:
        return value.decode(), at
    except UnicodeDecodeError:
        return value, at


def _decimal(encoded: bytes, at: int) -> tuple[Decimal, int]:
    scale, raw = struct.unpack_from(">Bi", encoded, at)
    return Decimal(raw).scaleb(-scale), at + 5


def _date(encoded: bytes, at: int) -> tuple[datetime | int, int]:
    """A date, or the number itself where it is out of range for one (some producers write milliseconds)."""
    (value,) = struct.unpack_from(">Q", encoded, at)
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value), at + 8
    except OverflowError:
        return value, at + 8


def _number(layout: str) -> Callable[[bytes, int], tuple[Any, int]]:
    reader = struct.Struct(layout)
    return lambda encoded, at: (reader.unpack_from(encoded, at)[0], at + reader.size)


KINDS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    ord("t"): lambda encoded, at: (bool(encoded[at]), at + 1),
    ord("V"): lambda encoded, at: (None, at),
    ord("S"): _text, ord("x"): _long, ord("F"): _table, ord("A"): _array, ord("D"): _decimal, ord("T"): _date,
    **{ord(kind): _number(layout) for kind, layout in (
        ("b", ">b"), ("B", ">B"), ("s", ">h"), ("U", ">h"), ("u", ">H"), ("I", ">i"), ("i", ">I"),
        ("l", ">q"), ("L", ">q"), ("f", ">f"), ("d", ">d"),
    )},
}  # fmt: skip
"""How each kind of AMQP value is read, as RabbitMQ writes them."""


def _value(encoded: bytes, at: int) -> tuple[Any, int]:
    return KINDS[encoded[at]](encoded, at + 1)
