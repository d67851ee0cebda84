"""Acts on one message: POST makes a retry, a redispatch, a mark or a discard."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages as notes
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard import acts, answers
from dashboard.filters import store
from dashboard.permissions import OPERATE, requires
from dashboard.views.errors import missing
from dashboard.views.message import describe
from outbox_core.errors import EffectMayRepeat, InvalidMessage, OutboxError, StateChanged
from outbox_core.models import Message
from outbox_core.operations import inspect, verbs
from outbox_core.operations.words import DONE


@requires(OPERATE)
@require_POST
def act(request: HttpRequest, message_id: UUID, plural: str) -> HttpResponse:
    """One act: one effect and one audit row, or a refusal that names who changed the message and when."""
    verb = acts.PLURALS[plural]
    try:
        acted = verbs.act(verb, message_id, actor=acts.actor(request), using=store(), **acts.asked(request))
    except Message.DoesNotExist:
        return missing(request, message_id)
    except StateChanged as refused:
        return _refused(request, message_id, verb, refused)
    except EffectMayRepeat as repeats:
        return _again(
            request, message_id, verb, 422, str(repeats), error=str(repeats), field="again",
            consumers=repeats.consumers,
        )  # fmt: skip
    except InvalidMessage as invalid:
        return _again(
            request,
            message_id,
            verb,
            422,
            str(invalid),
            error=str(invalid),
            field=invalid.field,
            limit=str(invalid.limit),
        )
    except OutboxError as failed:
        return _again(request, message_id, verb, 503, str(failed), error=str(failed))
    return _done(request, message_id, verb, acted)


def _done(request: HttpRequest, message_id: UUID, verb: str, acted: verbs.Acted) -> HttpResponse:
    operation = acted.operation
    if answers.wants_json(request):
        return answers.json_answer({
            "operation": operation and operation.pk, "outcome": acted.outcome, "state": acted.state,
            "by": operation.actor if operation else "", "at": operation and operation.at,
        })  # fmt: skip
    text = _("Message %(verb)s: it is %(state)s now.") % {"verb": DONE[verb], "state": acted.state}
    if acted.outcome == "unchanged":
        text = _("Nothing to do: it is %s, and due already.") % acted.state
    if answers.is_htmx(request):
        answer = render(request, "outboard/toast.html", {"level": "ok", "text": text})
        answer["HX-Trigger-After-Swap"] = "outboard:acted"  # it takes away the form that asked
        return answer
    notes.success(request, text)
    return HttpResponse(status=303, headers={"Location": reverse("outboard:message", args=[message_id])})


def _refused(request: HttpRequest, message_id: UUID, verb: str, refused: StateChanged) -> HttpResponse:
    return _again(
        request, message_id, verb, 409, str(refused), error=str(refused), operation=None, outcome="refused",
        state=refused.actual_state, by=refused.by, at=refused.at,
    )  # fmt: skip


def _again(
    request: HttpRequest, message_id: UUID, verb: str, status: int, text: str, **data: Any
) -> HttpResponse:
    """The dialog once more, with what was wrong, and the message as it is now."""
    if answers.wants_json(request):
        return answers.json_answer(data, status)
    using = store()
    found = Message.objects.using(using).filter(message_id=message_id).first()
    if found is None:
        return missing(request, message_id)
    standing = inspect.standing(found, using)
    context = acts.dialog(
        found, standing, verb, using, problem=text, status=status, reason=request.POST.get("reason", "")
    )
    if answers.is_htmx(request):
        return render(request, "outboard/dialog.html", context, status=status)
    page = describe(found, standing, using) | {
        "dialog": context,
        "hide_content": True,
    }
    return render(request, "outboard/message.html", page, status=status)
