"""One message: why it is where it is, what happened to it, what it says, and what can be done."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard import answers, at_consumers, content, explain, listing, story
from dashboard.acts import choices, dialog
from dashboard.filters import store
from dashboard.permissions import OPERATE, VIEW, allows, requires
from dashboard.views.errors import missing
from outbox_core.clock import database_now
from outbox_core.models import Message, Pending
from outbox_core.operations import inspect
from outbox_core.operations.inspect import Standing


@requires(VIEW)
@require_safe
def message(request: HttpRequest, message_id: UUID) -> HttpResponse:
    """The permalink. `?dialog=<verb>` asks for a reason; `?payload=raw` is the masked JSON text alone."""
    using = store()
    found = Message.objects.using(using).filter(message_id=message_id).first()
    if found is None:
        return missing(request, message_id)
    if request.GET.get("payload") == "raw":
        return HttpResponse(content.raw(found), content_type="application/json; charset=utf-8")
    standing = inspect.standing(found, using)
    verb = request.GET.get("dialog", "") if allows(request.user, OPERATE) else ""
    asked = dialog(found, standing, verb, using) if verb else None
    if asked and answers.is_htmx(request):
        return render(request, "outboard/dialog.html", asked)
    context = describe(found, standing, using) | {"dialog": asked}
    if not answers.is_htmx(request) and not answers.wants_json(request):
        context |= content.shown(found, everything=request.GET.get("payload") == "all")
    return answers.page(request, "message", context, lambda: _json(context, found, using))


def describe(found: Message, standing: Standing, using: str) -> dict[str, Any]:
    """All that the page's live parts show."""
    now = database_now(using)
    behind = _waiting_behind(found, standing, using)
    row = listing.rows([found], now, using)[0]
    consumers = inspect.consumers(found, using)
    unfinished = at_consumers.worst(consumers) if standing.state == "dispatched" else None
    return {
        "message": found,
        "standing": standing,
        "now": now,
        "row": row,
        "behind": behind,
        "why": explain.why(found, standing, now, behind, consumers),
        "timeline": story.tell(inspect.timeline(found, using)),
        "consumers": consumers,
        "acts": choices(standing, unfinished),
        "unfinished": unfinished,
        "causes": inspect.causes(found, using),
        "effects": inspect.effects(found, using),
    }


def _waiting_behind(found: Message, standing: Standing, using: str) -> int:
    row = standing.parked or standing.pending
    if row is None or not found.key or standing.state in ("marked", "discarded"):
        return 0
    lane = Pending.objects.using(using).filter(
        partition=row.partition, key=found.key, position__gt=row.position
    )
    return int(lane.exclude(pk=found.pk).order_by().values("pk")[: inspect.EARLIER_CAP + 1].count())


def _json(context: dict[str, Any], found: Message, using: str) -> dict[str, Any]:
    return listing.as_json(context["row"], context["now"]) | {
        "why": context["why"].text,
        "advice": context["why"].advice,
        "waits": context["standing"].waits.kind,
        "correlation_id": found.correlation_id,
        "causation_id": found.causation_id,
        "source": found.source,
        "traceparent": found.traceparent,
        "digest": found.digest,
        **content.as_json(found),
        "timeline": [
            {
                "at": e.at,
                "kind": e.kind,
                "text": e.text,
                "worker": e.worker,
                "attempt": e.attempt,
                "detail": e.detail,
            }
            for e in inspect.timeline(found, using)
        ],
        "consumers": [
            {
                "consumer": c.consumer,
                "state": c.state,
                "at": c.at,
                "duplicates": c.duplicates,
                "attempts": c.attempts,
                "error": c.detail,
            }
            for c in context["consumers"]
        ],
        "causes": [_reference(m) for m in context["causes"]],
        "effects": [_reference(m) for m in context["effects"]],
    }


def _reference(other: Message) -> dict[str, Any]:
    return {
        "message_id": other.message_id,
        "type": other.type,
        "key": other.key,
        "created_at": other.created_at,
    }
