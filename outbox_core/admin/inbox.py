"""The receiving side: receipts, what is being handled, duplicates, and the embedded broker's tables."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from outbox_core.admin.payloads import pretty, shown
from outbox_core.admin.readonly import ReadOnly, choice, links, present
from outbox_core.models import (
    Binding,
    Duplicate,
    Handling,
    LoopbackBinding,
    LoopbackDelivery,
    LoopbackQueue,
    Message,
    Newest,
    Receipt,
)  # fmt: skip


class OfMessage(ReadOnly):
    """Rows that name a message by its text id, which may be from elsewhere."""

    search_help_text = "Exact message id."
    search_fields = ("message_id",)  # see get_search_results

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:  # fmt: skip
        term = search_term.strip()
        return (queryset.filter(message_id=term) if term else queryset), False

    @admin.display(description="message")
    def message_link(self, row: Any) -> str:
        return links(Message, row.message_id, q=row.message_id) if row.message_id else "no id"


@admin.register(Receipt)
class ReceiptAdmin(OfMessage):
    """What consumers are done with."""

    list_display = ("id", "consumer", "message_link", "outcome", "attempt", "received_at", "processed_at")
    list_filter = (present("consumer"), choice("outcome", ("processed", "stale", "rejected")))


@admin.register(Handling)
class HandlingAdmin(OfMessage):
    """What consumers received and are not done with."""

    list_display = (
        "id",
        "consumer",
        "message_link",
        "type",
        "state",
        "attempts",
        "failures",
        "error_class",
        "available_at",
    )
    list_filter = (present("consumer"), choice("state", ("retrying", "waiting", "dead", "undecodable")))
    exclude = ("envelope",)
    readonly_fields = ("pretty_envelope", "pretty_body")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Handling]:
        return super().get_queryset(request).defer("envelope", "body")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            row.request = request  # the body is shown as this user may see it
        return row

    @admin.display(description="envelope")
    def pretty_envelope(self, row: Handling) -> str:
        return pretty(row.envelope)

    @admin.display(description="body")
    def pretty_body(self, row: Handling) -> str:
        request: HttpRequest = row.request  # type: ignore[attr-defined]
        return shown(row.body, request, row.message_id or "", str(row._state.db))


@admin.register(Duplicate)
class DuplicateAdmin(OfMessage):
    """Every duplicate that was seen, and had no effect."""

    list_display = ("id", "message_link", "consumer", "cause", "same_payload", "gap", "attempt", "at")
    list_filter = (choice("cause", Duplicate.CAUSES), present("consumer"))


@admin.register(Newest)
class NewestAdmin(ReadOnly):
    """The newest position that each consumer applied per key."""

    list_display = ("id", "consumer", "source", "key", "position", "at")


@admin.register(Binding)
class BindingAdmin(ReadOnly):
    """The bindings that this project declared."""

    list_display = ("queue", "exchange", "pattern", "declared_at")


@admin.register(LoopbackQueue)
class LoopbackQueueAdmin(ReadOnly):
    """The queues of the embedded broker."""

    list_display = ("name", "single_active")


@admin.register(LoopbackBinding)
class LoopbackBindingAdmin(ReadOnly):
    """The bindings of the embedded broker."""

    list_display = ("id", "exchange", "pattern", "queue_id")


@admin.register(LoopbackDelivery)
class LoopbackDeliveryAdmin(ReadOnly):
    """The copies that stand in the embedded broker's queues."""

    list_display = ("id", "queue", "routing_key", "taken_by", "deliveries", "visible_at")
    list_filter = (present("queue"),)
    exclude = ("properties", "headers")
    readonly_fields = ("pretty_properties", "pretty_headers", "size")

    def get_queryset(self, request: HttpRequest) -> QuerySet[LoopbackDelivery]:
        return super().get_queryset(request).defer("properties", "headers", "body")

    @admin.display(description="properties")
    def pretty_properties(self, row: LoopbackDelivery) -> str:
        return pretty(row.properties)

    @admin.display(description="headers")
    def pretty_headers(self, row: LoopbackDelivery) -> str:
        return pretty(row.headers)

    @admin.display(description="body")
    def size(self, row: LoopbackDelivery) -> str:
        return format_html("{} bytes (the payload is shown with its message)", len(row.body))
