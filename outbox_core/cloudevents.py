"""CloudEvents 1.0 from any producer: the attributes stand in the headers (binary mode) or in the body (structured).

AMQP binding 1.0, sections 3.1 and 3.2; JSON event format 1.0, section 3. A batch is none of both.
"""

from __future__ import annotations

from typing import Any

from outbox_core import jsontext
from outbox_core.transports.base import Delivery

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
PREFIXES = ("cloudEvents_", "cloudEvents:")  # of headers; both are equal


def media_type(content_type: str) -> str:
    """A content type in lower case, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def attributes(delivery: Delivery) -> dict[str, Any]:
    """The attributes by their names; none for what is no CloudEvent. Never raises: what can't be read is missing."""
    if media_type(delivery.content_type) == STRUCTURED:
        try:
            event = jsontext.load(delivery.body.decode("utf-8-sig"))
        except (ValueError, ArithmeticError):
            return {}
        return event if isinstance(event, dict) else {}
    size = len(PREFIXES[0])
    return {name[size:]: value for name, value in delivery.headers.items() if name.startswith(PREFIXES)}
