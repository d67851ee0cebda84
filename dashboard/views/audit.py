"""The audit trail: who did what, why, and what it changed."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import answers, paging
from dashboard.filters import as_uuid, clean, store
from dashboard.permissions import AUDIT, requires
from outbox_core.models import Operation
from outbox_core.operations import audit as chain


@requires(AUDIT)
@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    """Operations, newest first; `?verify=1` walks the chain."""
    using = store()
    wanted = {name: clean(request.GET.get(name, "")) for name in ("verb", "actor", "message")}
    names = {"verb": "verb", "actor": "actor", "message": "message_id"}
    rows = Operation.objects.using(using).filter(**{names[k]: v for k, v in wanted.items() if v})
    page = paging.by_id(request, rows)
    context = {
        "page": page,
        "wanted": wanted,
        "head": chain.head(using),
        "newest": paging.address(request),
        "rows": [{"operation": o, "link": as_uuid(o.message_id)} for o in page.rows],
        "verbs": ["retry", "redispatch", "mark", "discard", "prune"],
        "problems": chain.verify(using) if request.GET.get("verify") == "1" else None,
    }
    return answers.page(request, "audit", context, lambda: _json(context))


def _json(context: dict[str, Any]) -> dict[str, Any]:
    page = context["page"]
    answer = {
        "items": [_operation(o) for o in page.rows],
        "next": page.next,
        "previous": page.previous,
        "counts": {},
        "head": {"id": context["head"][0], "hash": context["head"][1]},
    }
    return answer if context["problems"] is None else {**answer, "problems": context["problems"]}


def _operation(o: Operation) -> dict[str, Any]:
    return {
        "id": o.pk,
        "at": o.at,
        "actor": o.actor,
        "actor_id": o.actor_id,
        "origin": o.origin,
        "remote": o.remote,
        "verb": o.verb,
        "reason": o.reason,
        "message_id": o.message_id,
        "selection": o.selection,
        "outcome": o.outcome,
        "before": o.before,
        "after": o.after,
        "hash": o.hash,
    }
