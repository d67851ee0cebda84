"""The list of messages."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_safe

from dashboard import answers, filters, listing, paging, search, summary
from dashboard.permissions import VIEW, requires
from outbox_core.clock import database_now
from outbox_core.errors import InvalidMessage
from outbox_core.models import Message
from outbox_core.operations import selection, stats, undone
from outbox_core.operations.selection import Page
from outbox_core.states import State

MOST_SHOWN = 200  # rows that a page which stays open is refreshed for


@requires(VIEW)
@require_safe
def messages(request: HttpRequest) -> HttpResponse:
    """Messages by state and filter, newest first; while it is open, only what changed comes again."""
    if query := filters.clean(request.GET.get("q", "")):
        return redirect(search.find(query, filters.store()))
    using = filters.store()
    now = database_now(using)
    wanted = filters.read(request.GET, now)
    page = _page(request, wanted, using)
    context = {
        "filters": wanted,
        "state": wanted.selection.state,
        "page": page,
        "tabs": _tabs(request, using),
        "at_consumers": _at_consumers(using),
        "next": page.next and paging.address(request, after=page.next),
        "previous": page.previous and paging.address(request, before=page.previous),
        "newest": paging.address(request),
        "top": not (request.GET.get("after") or request.GET.get("before")),
    }
    if answers.is_htmx(request):
        context |= _changes(request, page, now, using, wanted.selection.state)
    else:
        context["rows"] = listing.rows(page.messages, now, using)
    return answers.page(
        request,
        "messages",
        context,
        lambda: _json(context, now, using),
        422 if wanted.problems and answers.wants_json(request) else 200,
    )


def _page(request: HttpRequest, wanted: filters.Filters, using: str) -> Page:
    after, before = request.GET.get("after") or None, request.GET.get("before") or None
    try:
        return selection.page(wanted.selection, after, before, paging.LIMIT, using)
    except InvalidMessage as error:
        wanted.problems.append(str(error))
        return selection.page(wanted.selection, limit=paging.LIMIT, using=using)


def _tabs(request: HttpRequest, using: str) -> list[dict[str, Any]]:
    counts = stats.counts(using)
    chosen = request.GET.get("state", "")
    query = request.GET.copy()
    for name in ("state", "after", "before", "rows", "hold"):
        query.pop(name, None)
    tabs = []
    for state in ("pending", "retrying", "dead", "dispatched", "marked", "discarded", ""):
        query["state"] = state
        count = counts[state or "all"]
        tabs.append(
            {
                "state": state,
                "name": state or "all",
                "here": chosen == state,
                "count": summary.capped(count),
                "raw": count,
                "url": f"{request.path}?{query.urlencode()}",
            }
        )
    return tabs


def _at_consumers(using: str) -> list[dict[str, Any]]:
    """What the tabs do not count, since it was dispatched."""
    counts = {"dead": undone.count(using, *undone.GIVEN_UP), "retrying": undone.count(using, *undone.TRIED)}
    return [{"state": state, "count": summary.capped(n)} for state, n in counts.items() if n]


def _changes(request: HttpRequest, page: Page, now: Any, using: str, state: str) -> dict[str, Any]:
    """The rows that the browser shows, as they are now; the new ones, or how many they are if none may move."""
    shown = _shown(request.GET.get("rows", ""))
    known = Message.objects.using(using).defer("payload", "headers").in_bulk(list(shown))
    oldest = min(shown, default=0)
    newer = list(takewhile(lambda m: m.pk not in known and m.pk > oldest, page.messages))
    hold = "hold" in request.GET
    rows = listing.rows([known[pk] for pk in shown if pk in known], now, using, state)
    return {
        # What waits changes with the clock; what is done changes with its version only.
        "rows": [r for r in rows if r.standing.pending or shown[r.message.pk] != r.seen],
        "fresh": [] if hold else listing.rows(newer, now, using),
        "newer": len(newer) if hold else 0,
        "newer_text": f"{paging.LIMIT}+" if len(newer) >= paging.LIMIT else str(len(newer)),
    }


def _shown(text: str) -> dict[int, str]:
    """The rows that a page shows, `<row id>~<what it saw of it>` each (`Row.seen`)."""
    pairs = (item.partition("~") for item in text.split(",")[:MOST_SHOWN])
    return {int(pk): version for pk, _, version in pairs if pk.isdecimal() and len(pk) < 19}


def _json(context: dict[str, Any], now: Any, using: str) -> dict[str, Any]:
    if problems := context["filters"].problems:
        return {"error": "; ".join(problems)}
    return {
        "items": [listing.as_json(row, now) for row in context["rows"]],
        "next": context["next"],
        "previous": context["previous"],
        "counts": stats.counts(using),
        "searched_to": context["page"].searched_to,
        "states": [str(s) for s in State],
    }
