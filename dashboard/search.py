"""The search box: an id opens its message, anything else becomes the filter that it fits."""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import reverse

from dashboard.filters import as_uuid
from outbox_core.models import Message


def find(query: str, using: str) -> str:
    """The address that answers the query: a message, or the list by key, type or correlation."""
    query = query[:255]
    if (uuid := as_uuid(query)) is not None:
        if Message.objects.using(using).filter(message_id=uuid).exists():
            return reverse("outboard:message", args=[uuid])
        return _list(correlation=query)
    messages = Message.objects.using(using)
    if messages.filter(key=query).exists():
        return _list(key=query)
    if messages.filter(correlation_id=query).exists():
        return _list(correlation=query)
    return _list(type=query if "*" in query or messages.filter(type=query).exists() else f"*{query}*")


def _list(**filters: str) -> str:
    return f"{reverse('outboard:messages')}?{urlencode(filters)}"
