"""What all lists share: nothing can be changed, and nothing counts a big table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.http import urlencode

CAP = 10_000
"""Rows that a list counts and pages through."""
PER_PAGE = 50


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts to CAP and no further; older rows are reached by a filter, not by page 100,000."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows[:CAP].count())


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """A model that can be looked at by whoever may view messages, and changed by no one."""

    permission = "outbox_core.view_message"
    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = PER_PAGE
    list_max_show_all = 0
    show_facets = admin.ShowFacets.NEVER  # they count every choice of every filter
    ordering = ("-pk",)
    sortable_by = ()

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm(self.permission)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(self.permission)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class Choice(admin.SimpleListFilter):
    """A filter with given choices for one column."""

    parameter_name: str
    choices_: tuple[str, ...] = ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(c, c) for c in self.choices_]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(**{self.parameter_name: self.value()})


def choice(column: str, values: Iterable[str], title: str = "") -> type[Choice]:
    """A filter on `column`, which an index or a small table must serve, with fixed values."""
    fields = {"title": title or column, "parameter_name": column, "choices_": tuple(values)}
    return type(f"{column.title()}Choice", (Choice,), fields)


MOST_VALUES = 50


def present(column: str, title: str = "") -> type[Choice]:
    """A filter on an indexed column with the values that occur, found by one index probe for each."""

    def lookups(self: Choice, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        found: list[str] = []
        rows = model_admin.get_queryset(request).order_by(column).values_list(column, flat=True)
        value = rows.exclude(**{column: ""}).first()
        while value is not None and len(found) < MOST_VALUES:
            found.append(value)
            value = rows.filter(**{f"{column}__gt": value}).first()
        return [(v, v) for v in found]

    return type(f"Present{column.title()}", (choice(column, (), title),), {"lookups": lookups})


def link(model: type[Model], pk: Any, text: str = "") -> str:
    """A link to a row's page in the admin."""
    if pk is None:
        return ""
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[pk])
    return format_html('<a href="{}">{}</a>', url, text or pk)


def links(model: type[Model], text: str, **filters: Any) -> str:
    """A link to a filtered list in the admin."""
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    return format_html('<a href="{}?{}">{}</a>', url, urlencode(filters), text)
