"""The JSON value in the body of a delivery, or the reason why there is none that can be read.

The limits are those that `publish()` has. They matter for messages of other producers, which know none of them.
"""

from __future__ import annotations

import base64
import re
from decimal import Decimal
from typing import Any

from outbox_core import cloudevents, jsontext
from outbox_core.cloudevents import media_type
from outbox_core.conf import settings
from outbox_core.transports.base import Delivery

JSON_TYPES = re.compile(r"(application|text)/([\w.-]+\+)?json", re.ASCII)
UTF8 = ("utf-8", "utf8", "us-ascii", "ascii")
PLAIN = (*UTF8, "", "identity", "binary", "8bit", "7bit")
"""Content encodings that change nothing. Kombu writes the charset there, and `binary` for a body it did not make."""


class Undecodable(Exception):
    """A delivery that no handler can be given; the text says why."""


def decode(delivery: Delivery) -> Any:
    """The JSON value of a delivery's body; of a structured CloudEvent, its data. Raises Undecodable with the reason."""
    _check_body(delivery)
    kind = media_type(delivery.content_type)
    if kind == cloudevents.BATCH:
        raise Undecodable("body is a batch of CloudEvents, but each must be a message of its own")
    value = _parse(delivery.body, delivery.content_type)
    return _data(value) if kind == cloudevents.STRUCTURED else value


def _check_body(delivery: Delivery) -> None:
    if (size := len(delivery.body)) > settings.MAX_PAYLOAD_BYTES:
        limit = settings.MAX_PAYLOAD_BYTES
        raise Undecodable(f"body is {size} bytes long, but the limit is {limit} (MAX_PAYLOAD_BYTES)")
    if delivery.content_encoding.strip().lower() not in PLAIN:
        raise Undecodable(
            f"content encoding is {delivery.content_encoding[:40]!r}, but only plain UTF-8 can be read"
        )
    compression = delivery.headers.get("compression")
    if isinstance(compression, str) and compression.startswith("application/"):  # as Kombu says it
        raise Undecodable(f"body is compressed ({compression[:40]}), but only plain UTF-8 can be read")


def _data(event: Any) -> Any:
    """The data of a CloudEvent in JSON."""
    if not isinstance(event, dict):
        raise Undecodable(f"it is no CloudEvent: its body is a {type(event).__name__}, not an object")
    version = event.get("specversion")
    if not isinstance(version, str):
        raise Undecodable("it is no CloudEvent: specversion is missing")
    if not version.startswith("1."):
        raise Undecodable(f"its specversion is {version[:40]!r}, but only 1.x can be read")
    kind = event.get("datacontenttype")
    kind = kind if isinstance(kind, str) else ""
    if (encoded := event.get("data_base64")) is not None:
        try:
            return _parse(base64.b64decode(encoded, validate=True), kind)
        except (ValueError, TypeError):
            raise Undecodable("its data_base64 is no base64") from None
    if (data := event.get("data")) is not None:
        _check_type(kind)
    return data


def _check_type(content_type: str) -> None:
    kind = media_type(content_type)
    if kind and not JSON_TYPES.fullmatch(kind):
        raise Undecodable(f"content type is {content_type[:100]!r}, but only JSON can be read")
    charset = re.search(
        r"charset\s*=\s*\"?([\w.-]+)", content_type.partition(";")[2], re.ASCII | re.IGNORECASE
    )
    if charset and charset[1].lower() not in UTF8:
        raise Undecodable(f"charset is {charset[1][:40]}, but JSON is UTF-8")


def _parse(body: bytes, content_type: str) -> Any:
    _check_type(content_type)
    try:
        value = jsontext.load(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Undecodable(f"body is not UTF-8 (byte {error.start})") from None
    except (ValueError, ArithmeticError) as error:
        reason = str(error).partition(";")[0][:200]  # after it stands Python's advice to programmers
        raise Undecodable(f"body is not JSON that can be read: {reason}") from None
    _check_limits(value, body)
    return value


def _check_limits(value: Any, body: bytes) -> None:
    if len(body) <= jsontext.MAX_DIGITS and body.count(b"[") + body.count(b"{") <= jsontext.MAX_DEPTH:
        return
    level, depth = [value], 0
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, Decimal) and len(item.as_tuple().digits) > jsontext.MAX_DIGITS:
                raise Undecodable(f"body has a number of more than {jsontext.MAX_DIGITS} digits")
        if depth > jsontext.MAX_DEPTH and any(isinstance(item, dict | list) for item in level):
            raise Undecodable(f"body is nested more than {jsontext.MAX_DEPTH} levels deep")
        level = below
