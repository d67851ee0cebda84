"""Payloads and headers for people: valid JSON, indented, readable Unicode, every digit kept; masked by rule."""

from __future__ import annotations

from typing import Any

import simplejson
from django.db import transaction
from django.http import HttpRequest
from django.utils.html import format_html

from outbox_core import jsontext
from outbox_core.operations import audit
from outbox_core.operations.masking import mask, plain
from outbox_core.operations.verbs import Actor

LONGEST = 200_000  # characters; a browser lays out more only slowly


def pretty(value: Any) -> str:
    """A JSON value as an indented, escaped block."""
    text = simplejson.dumps(value, use_decimal=True, ensure_ascii=False, indent=2)
    rest = f"\n… {len(text) - LONGEST:,} more characters" if len(text) > LONGEST else ""
    return format_html("<pre>{}{}</pre>", text[:LONGEST], rest)


def shown(text: str | bytes | memoryview, request: HttpRequest, message_id: str, using: str) -> str:
    """The body of a message as this user may see it. What a rule masks is shown to who may reveal it, and that is
    audited."""
    may_reveal = request.user.has_perm("outbox_core.reveal_payload")
    try:
        value = jsontext.load(text if isinstance(text, str) else bytes(text).decode())
    except ValueError:
        return _not_json(text, may_reveal, request, message_id, using)
    masked = plain(mask(value))
    if masked == value or not may_reveal:
        return pretty(masked)
    _audit(request, message_id, using)
    return pretty(value)


def _not_json(
    body: str | bytes | memoryview, may_reveal: bool, request: HttpRequest, message_id: str, using: str
) -> str:  # fmt: skip
    """No rule can mask what is no JSON, so all of it is masked."""
    if not may_reveal:
        return f"{len(body):,} bytes that are no JSON. Seeing them needs the permission reveal_payload."
    _audit(request, message_id, using)
    text = body if isinstance(body, str) else bytes(body).decode(errors="replace")
    return format_html("<pre>{}</pre>", text[:LONGEST])


def _audit(request: HttpRequest, message_id: str, using: str) -> None:
    with transaction.atomic(using=using):
        audit.record(
            using, actor=actor(request), verb="reveal", message_id=message_id, reason="Opened unmasked in the admin"
        )  # fmt: skip


def actor(request: HttpRequest) -> Actor:
    """The signed-in user as the audit trail names them."""
    user = request.user
    return Actor(str(user.pk), user.get_username(), "admin", request.META.get("REMOTE_ADDR", ""))
