"""The audit trail: who did what to which messages, why, and what it changed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from outbox_core.admin.payloads import pretty
from outbox_core.admin.readonly import ReadOnly, choice, link, links, present
from outbox_core.models import Message, Operation, OperationItem


@admin.register(Operation)
class OperationAdmin(ReadOnly):
    """Every act, newest first. `outbox_status --verify-audit` says whether the trail is whole."""

    permission = "outbox_core.view_operation"
    list_display = ("id", "at", "actor", "origin", "verb", "message_link", "reason", "outcome")
    list_display_links = ("id", "at")
    list_filter = (
        present("verb"), present("actor"), choice("outcome", ("done", "refused", "unchanged", "started", "finished")),
    )  # fmt: skip
    search_fields = ("=message_id",)
    search_help_text = "Exact message id."
    fieldsets = (
        (None, {"fields": ("id", "at", "verb", "outcome", "reason", "message_link")}),
        ("Who", {"fields": ("actor", "actor_id", "origin", "remote")}),
        ("What", {"fields": ("pretty_selection", "pretty_before", "pretty_after")}),
        ("Chain", {"fields": ("previous_hash", "hash")}),
    )

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        term = search_term.strip()
        return (queryset.filter(message_id=term) if term else queryset), False

    @admin.display(description="message")
    def message_link(self, row: Operation) -> str:
        return links(Message, row.message_id, q=row.message_id) if row.message_id else "a selection"

    @admin.display(description="selection")
    def pretty_selection(self, row: Operation) -> str:
        return pretty(row.selection)

    @admin.display(description="before")
    def pretty_before(self, row: Operation) -> str:
        return pretty(row.before)

    @admin.display(description="after")
    def pretty_after(self, row: Operation) -> str:
        return pretty(row.after)


@admin.register(OperationItem)
class OperationItemAdmin(ReadOnly):
    """The messages of bulk acts."""

    permission = "outbox_core.view_operation"
    list_display = ("id", "operation_link", "message_link", "outcome", "detail")

    @admin.display(description="operation")
    def operation_link(self, row: OperationItem) -> str:
        return link(Operation, row.operation_id)

    @admin.display(description="message")
    def message_link(self, row: OperationItem) -> str:
        return link(Message, row.message)
