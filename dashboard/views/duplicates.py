"""The ledger of duplicates: who saw which message again, why, and whether it said the same."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import answers, filters, ledger, paging
from dashboard.permissions import VIEW, requires
from outbox_core.clock import database_now
from outbox_core.operations import dedupe


@requires(VIEW)
@require_safe
def duplicates(request: HttpRequest) -> HttpResponse:
    """Duplicates, newest first; by cause, by consumer, and those whose payload differs."""
    using = filters.store()
    wanted = ledger.read(request.GET, database_now(using))
    page = paging.by_id(request, ledger.matching(wanted, using))
    context = {
        "filters": wanted, "page": page, "rows": ledger.rows(page.rows, using), "counts": ledger.counts(using),
        "consumers": ledger.consumers(using), "top": page.previous is None, "newest": paging.address(request),
        "window_advice": partial(ledger.window_advice, using),  # only where a page shows it
    }  # fmt: skip
    return answers.page(request, "duplicates", context, lambda: _json(context, using))


def _json(context: dict[str, Any], using: str) -> dict[str, Any]:
    page = context["page"]
    return {
        "items": [ledger.as_json(row) for row in context["rows"]],
        "next": page.next, "previous": page.previous, "counts": context["counts"],
        "window_seconds": dedupe.window().total_seconds(), "gaps": ledger.gaps_as_json(using),
    }  # fmt: skip
