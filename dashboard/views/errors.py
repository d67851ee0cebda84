"""Pages for what went wrong, in the look of the others, and as JSON."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from dashboard import answers
from dashboard.permissions import sign_in


def missing(request: HttpRequest, message_id: UUID | str) -> HttpResponse:
    """There is no such message (any more)."""
    text = (
        _("No message has the id %s. It was never committed here, or its retention has ended.") % message_id
    )
    return answers.error(request, 404, _("No such message"), detail=text)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """404. An anonymous visitor learns nothing of which addresses exist."""
    if not request.user.is_authenticated:
        return sign_in(request)
    return answers.error(request, 404, _("No such page"), detail=_("The address leads nowhere."))


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """403 raised by code that does not name a permission."""
    return answers.error(request, 403, _("You may not see this."))


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form without its token, or one from another site."""
    text = _(
        "The form was too old, or came from another site. Nothing was changed. Open the page again and repeat it."
    )
    return answers.error(request, 403, _("Not accepted"), detail=text)


def failed(request: HttpRequest) -> HttpResponse:
    """500. The template needs neither the database nor the session: either may be what failed."""
    if answers.wants_json(request):
        return answers.json_answer({"error": _("The server failed."), "detail": ""}, 500)
    context: dict[str, Any] = {"status": 500}
    return render(None, "outboard/failed.html", context, status=500)
