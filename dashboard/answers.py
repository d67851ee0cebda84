"""How a view answers: the same data as a page, as the live parts of a page, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from outbox_core import jsontext


def wants_json(request: HttpRequest) -> bool:
    """Does the client prefer JSON to a page?"""
    return request.get_preferred_type(["text/html", "application/json"]) == "application/json"


def is_htmx(request: HttpRequest) -> bool:
    """Does htmx ask, for a fragment? Read from the request itself, so that a project needs no middleware for it."""
    return request.headers.get("HX-Request") == "true"


def json_answer(data: Mapping[str, Any], status: int = 200) -> HttpResponse:
    """JSON with every digit kept: Decimal and big integers stay numbers, datetimes are ISO 8601."""
    return HttpResponse(jsontext.dump(data, "answer"), status=status, content_type="application/json")


def page(
    request: HttpRequest,
    name: str,
    context: dict[str, Any],
    data: Callable[[], Mapping[str, Any]],
    status: int = 200,
) -> HttpResponse:
    """Answer with the page `name`: JSON if asked for, its live parts for htmx, else the whole page.

    A page is two templates: `outboard/<name>.html`, and `outboard/<name>_parts.html`, which holds all that is
    refreshed while the page is open; there `oob` marks each part with hx-swap-oob.
    """
    if wants_json(request):
        return json_answer(data(), status)
    if is_htmx(request):
        return render(request, f"outboard/{name}_parts.html", {**context, "oob": True}, status=status)
    return render(request, f"outboard/{name}.html", context, status=status)


def error(request: HttpRequest, status: int, title: str, *, detail: str = "", **more: Any) -> HttpResponse:
    """An error as JSON, as a toast for htmx, or as a page in the look of the others."""
    if wants_json(request):
        return json_answer({"error": title, "detail": detail, **more}, status)
    context = {"status": status, "title": title, "detail": detail, **more}
    template = "outboard/toast.html" if is_htmx(request) else "outboard/error.html"
    return render(request, template, {**context, "level": "bad", "text": f"{title} {detail}"}, status=status)
