"""The first screen: is anything wrong, where, since when, and what to do."""

from __future__ import annotations

from dataclasses import asdict

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import answers, attention, crew, summary
from dashboard.filters import store
from dashboard.fragments import shared
from dashboard.permissions import VIEW, requires
from outbox_core.clock import database_now
from outbox_core.models import Message, Operation
from outbox_core.operations import health, stats


@requires(VIEW)
@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """The verdict, eight numbers, what needs a person, throughput, the latest acts and the workers."""
    if answers.is_htmx(request) and not answers.wants_json(request):
        return HttpResponse(shared(request, lambda: _answer(request).content))
    return _answer(request)


def _answer(request: HttpRequest) -> HttpResponse:
    using = store()
    now = database_now(using)
    window = request.GET.get("window", "1h")
    window = window if window in summary.WINDOWS else "1h"
    needs = attention.needs(using, now)
    context = {
        "verdict": health.verdict(using),
        "numbers": summary.numbers(using, now),
        "needs": needs,
        "throughput": summary.throughput(using, now, window),
        "window": window, "windows": summary.WINDOWS,
        "operations": Operation.objects.using(using).order_by("-id")[:8],
        "crew": crew.crew(using, now),
        "fresh": not needs and not Message.objects.using(using).exists(),
    }  # fmt: skip
    return answers.page(request, "overview", context, lambda: _json(context, using))


def _json(context: dict, using: str) -> dict:  # type: ignore[type-arg]
    return {
        "verdict": asdict(context["verdict"]),
        "numbers": {n.name: n.raw for n in context["numbers"]},
        "counts": stats.counts(using),
        "needs": [asdict(n) for n in context["needs"]],
        "workers": [crew.as_json(h) for h in context["crew"].hands],
    }
