"""The workers, their heartbeats, and which partition belongs to whom."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import answers, crew
from dashboard.filters import store
from dashboard.permissions import VIEW, requires
from outbox_core.clock import database_now
from outbox_core.conf import settings
from outbox_core.heartbeat import alive_for
from outbox_core.operations import health, stats


@requires(VIEW)
@require_safe
def workers(request: HttpRequest) -> HttpResponse:
    """Every worker that was heard of, with the partition map."""
    using = store()
    found = crew.crew(using, database_now(using))
    context = {
        "crew": found,
        "verdict": health.verdict(using),
        "silent_after": alive_for().total_seconds(),
        "transport": settings.transport,
        "mode": settings.MODE,
    }
    return answers.page(
        request,
        "workers",
        context,
        lambda: {
            "items": [crew.as_json(h) for h in found.hands],
            "next": None,
            "previous": None,
            "counts": stats.counts(using),
            "partitions": [name if index is not None else None for name, index in found.owners],
        },
    )
