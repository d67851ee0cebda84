"""What a message says: payload and headers, masked before they reach a template."""

from __future__ import annotations

from typing import Any

from dashboard import payload
from outbox_core import jsontext
from outbox_core.models import Message
from outbox_core.operations import masking

EVERYTHING = 32 * 1024 * 1024


def shown(message: Message, everything: bool = False) -> dict[str, Any]:
    """Payload and headers as markup, for the page."""
    budget = EVERYTHING if everything else payload.BUDGET
    return {
        "payload": payload.render(masking.mask(jsontext.load(message.payload)), budget),
        "headers": payload.render(masking.mask(message.headers), budget) if message.headers else None,
        "octets": len(message.payload.encode()),
    }


def raw(message: Message) -> str:
    """The payload's JSON text, masked values as null."""
    return jsontext.dump(masking.plain(masking.mask(jsontext.load(message.payload))))


def as_json(message: Message) -> dict[str, Any]:
    """Payload and headers for the JSON page."""
    return {
        "payload": masking.plain(masking.mask(jsontext.load(message.payload))),
        "headers": masking.plain(masking.mask(message.headers)),
    }
