"""Older and newer by keyset: no page numbers, no counting, and a page that stays the same while rows arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Model, QuerySet
from django.http import HttpRequest

LIMIT = 50


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows, newest first, and the addresses of what is older (`next`) and newer (`previous`), or None at an end."""

    rows: Sequence[Any]
    next: str | None
    previous: str | None


def address(request: HttpRequest, **cursor: str) -> str:
    """This page's address at another cursor."""
    query = request.GET.copy()
    for name in ("after", "before", "rows", "hold", "dialog"):
        query.pop(name, None)
    query.update(cursor)
    return f"{request.path}?{query.urlencode()}" if query else request.path


def by_id(request: HttpRequest, rows: QuerySet[Any, Any], limit: int = LIMIT) -> Slice:
    """A slice of a table by its id, newest first. A cursor that is none counts as the newest page."""
    after, before = _number(request.GET.get("after")), _number(request.GET.get("before"))
    if before is not None:
        found = list(rows.filter(pk__gt=before).order_by("pk")[: limit + 1])
        shown = found[:limit][::-1]
        return _slice(request, shown, older=True, newer=len(found) > limit, start=before)
    older = rows if after is None else rows.filter(pk__lt=after)
    found = list(older.order_by("-pk")[: limit + 1])
    return _slice(request, found[:limit], older=len(found) > limit, newer=after is not None, start=after)


def _slice(request: HttpRequest, shown: list[Model], *, older: bool, newer: bool, start: int | None) -> Slice:
    first = shown[0].pk if shown else (start or 0) - 1
    last = shown[-1].pk if shown else (start or 0) + 1
    return Slice(
        shown,
        address(request, after=str(last)) if older else None,
        address(request, before=str(first)) if newer else None,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 19 else None


def each(rows: Sequence[Any], form: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as JSON objects."""
    return [form(row) for row in rows]
