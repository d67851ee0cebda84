"""The sending side: messages, the queue, what is parked, confirmed sends and failed attempts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from outbox_core.admin.acts import Acting
from outbox_core.admin.payloads import pretty, shown
from outbox_core.admin.readonly import CAP, Choice, ReadOnly, choice, link, links
from outbox_core.clock import database_now
from outbox_core.models import (
    Dispatch,
    Duplicate,
    FailedAttempt,
    Handling,
    Message,
    Operation,
    Parked,
    Pending,
    Receipt,
)
from outbox_core.operations import inspect
from outbox_core.operations.facts import versions
from outbox_core.states import PARKED, State

FOUND = 1_000  # newest messages that a search shows


class StateFilter(Choice):
    """By state. Dispatched messages are the bulk of the table: they have a list of their own."""

    title, parameter_name = "state", "state"
    choices_ = tuple(s for s in State if s != State.DISPATCHED)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        state = self.value()
        if state is None:
            return queryset
        if state in PARKED:
            rows: Any = Parked.objects.using(queryset.db).filter(state=state)
        else:
            failures = {"failures": 0} if state == State.PENDING else {"failures__gt": 0}
            rows = Pending.objects.using(queryset.db).filter(**failures)
        # Resolved first: a join would let the planner walk the big table for the few that match.
        return queryset.filter(pk__in=list(rows.order_by("-pk").values_list("pk", flat=True)[:CAP]))


class CommittedFilter(Choice):
    """By the time of the commit, from now back."""

    title, parameter_name = "committed", "committed"
    spans = {"10 minutes": 600, "hour": 3600, "day": 86400, "week": 604800}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(seconds), f"in the last {name}") for name, seconds in self.spans.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in [str(s) for s in self.spans.values()]:
            return queryset
        since = database_now(queryset.db) - timedelta(seconds=int(self.value() or 0))
        return queryset.filter(created_at__gte=since)


class WithStates(ChangeList):
    """Looks up the states of the page's rows together, not one by one."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        known = versions([row.pk for row in rows], self.queryset.db)
        for row in rows:
            row.shown_state = known[row.pk][1].partition(".")[0] if row.pk in known else ""
        self.result_list = rows


@admin.register(Message)
class MessageAdmin(Acting, ReadOnly):
    """Everything that was said. Search is exact: an index serves each column."""

    list_display = ("message_id", "type", "key", "state", "created_at")
    list_filter = (StateFilter, CommittedFilter)
    search_fields = ("message_id",)  # see get_search_results
    search_help_text = f"Exact id, type, key, correlation or causation; the newest {FOUND:,} are shown."
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "message_id",
                    "state",
                    "waits_for",
                    "type",
                    "key",
                    "destination",
                    "created_at",
                    "source",
                )
            },
        ),
        ("What happened", {"fields": ("what_happened", "more")}),
        ("Payload", {"fields": ("body", "digest", "pretty_headers")}),
        ("Where it comes from", {"fields": ("correlation_id", "causation_id", "traceparent", "mandatory")}),
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return WithStates

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        rows = super().get_queryset(request)
        on_list = request.resolver_match is not None and "object_id" not in request.resolver_match.kwargs
        return rows.defer("payload", "headers") if on_list else rows

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Message | None:
        message: Message | None = super().get_object(request, object_id, from_field)
        if message is not None:
            message.request = request  # type: ignore[attr-defined]  # the payload is shown as this user may see it
        return message

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:  # fmt: skip
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(pk__in=_search(term, queryset.db)), False

    @admin.display(description="state")
    def state(self, message: Message) -> str:
        known: str | None = getattr(message, "shown_state", None)
        return inspect.standing(message, str(message._state.db)).state if known is None else known

    @admin.display(description="waits for")
    def waits_for(self, message: Message) -> str:
        wait = inspect.standing(message, str(message._state.db)).waits
        parts = [wait.kind.replace("_", " ") or "nothing", wait.by]
        parts += [f"until {_clock(wait.until)}"] if wait.until else []
        parts += [f"since {_clock(wait.since)}"] if wait.since else []
        parts += [f"{wait.earlier} earlier of its key"] if wait.earlier else []
        return ", ".join(part for part in parts if part)

    @admin.display(description="timeline, newest first")
    def what_happened(self, message: Message) -> str:
        entries = inspect.timeline(message, str(message._state.db))
        rows = ((_clock(e.at), e.text, e.worker) for e in entries)
        return format_html("<ol>{}</ol>", format_html_join("", "<li>{} {} <small>{}</small></li>", rows))

    @admin.display(description="rows")
    def more(self, message: Message) -> str:
        id_ = str(message.message_id)
        lists = [
            links(Dispatch, "confirmed sends", message=message.pk),
            links(FailedAttempt, "failed attempts", message=message.pk),
            links(FailedAttempt, "failed handlings", foreign_id=id_), links(Receipt, "receipts", message_id=id_),
            links(Handling, "handlings", message_id=id_), links(Duplicate, "duplicates", message_id=id_),
            links(Operation, "operations", message_id=id_), links(Message, "what it caused", causation_id=id_),
        ]  # fmt: skip
        return format_html_join(", ", "{}", ((item,) for item in lists))

    @admin.display(description="payload")
    def body(self, message: Message) -> str:
        request: HttpRequest = message.request  # type: ignore[attr-defined]
        return shown(message.payload, request, str(message.message_id), str(message._state.db))

    @admin.display(description="headers")
    def pretty_headers(self, message: Message) -> str:
        return pretty(message.headers)


def _clock(moment: datetime) -> str:
    """A time in the site's zone, to the millisecond."""
    return timezone.localtime(moment).isoformat(" ", "milliseconds")


def _search(term: str, using: str) -> list[int]:
    """Row ids of the newest messages that carry `term` somewhere, each column by its own index."""
    messages = Message.objects.using(using).order_by("-pk").values_list("pk", flat=True)
    try:
        return list(messages.filter(message_id=UUID(term)))
    except ValueError:
        pass
    found: set[int] = set()
    for column in ("type", "key", "correlation_id", "causation_id"):
        found.update(messages.filter(**{column: term})[:FOUND])
    return sorted(found, reverse=True)[:FOUND]


def _message_link() -> Callable[[Any, Any], str]:
    @admin.display(description="message")
    def message_link(self: Any, row: Any) -> str:
        return link(Message, row.message_id)

    return message_link


@admin.register(Pending)
class PendingAdmin(Acting, ReadOnly):
    """The queue, newest message first."""

    list_display = (
        "message_link",
        "type",
        "key",
        "available_at",
        "attempts",
        "failures",
        "scheduled",
        "error_class",
    )
    list_filter = (choice("scheduled", ("True", "False")), choice("direct", ("True", "False")))
    search_fields = ("=type", "=key")
    message_link = _message_link()
    exclude = ("message",)
    readonly_fields = ("message_link",)


@admin.register(Parked)
class ParkedAdmin(Acting, ReadOnly):
    """What will not be sent unless a person acts, newest message first."""

    list_display = ("message_link", "state", "type", "key", "holds", "error_class", "at")
    list_filter = (choice("state", PARKED), choice("holds", ("True", "False"), "holds its key"))
    search_fields = ("=type", "=key", "=fingerprint", "=error_class")
    message_link = _message_link()
    exclude = ("message",)
    readonly_fields = ("message_link",)


@admin.register(Dispatch)
class DispatchAdmin(ReadOnly):
    """Confirmed sends, newest first."""

    list_display = ("id", "message_link", "at", "worker", "attempt", "cause", "returned")
    message_link = _message_link()
    exclude = ("message",)
    readonly_fields = ("message_link",)


@admin.register(FailedAttempt)
class FailedAttemptAdmin(ReadOnly):
    """Failed sends and handlings, and sends of unknown outcome, newest first."""

    list_display = ("id", "message_link", "at", "consumer", "worker", "attempt", "error_class", "kind")
    message_link = _message_link()
    exclude = ("message",)
    readonly_fields = ("message_link",)
