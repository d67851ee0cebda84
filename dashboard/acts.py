"""The acts on one message: which there are now, what their dialog says, and how one is carried out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard import at_consumers
from outbox_core.errors import InvalidMessage
from outbox_core.models import Message
from outbox_core.operations import dedupe, inspect
from outbox_core.operations.facts import gather
from outbox_core.operations.inspect import ConsumerState, Standing
from outbox_core.operations.reception import may_repeat
from outbox_core.operations.verbs import Actor
from outbox_core.states import VERBS, verbs_for

PLURALS = {"retries": "retry", "redispatches": "redispatch", "marks": "mark", "discards": "discard"}
"""An act is a resource: what a POST makes is one retry among the retries of a message."""

TITLES = {
    "retry": gettext_lazy("Retry now"), "redispatch": gettext_lazy("Redispatch"),
    "mark": gettext_lazy("Mark dispatched"), "discard": gettext_lazy("Discard"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """A verb as a button. `refused` says why it can't be used now; empty if it can."""

    verb: str
    title: Any
    refused: str = ""
    plural: str = ""


def choices(standing: Standing, unfinished: ConsumerState | None = None) -> list[Choice]:
    """Every verb, those that can't be used now with the reason. The verb itself checks again, under lock.
    `unfinished`: the consumer that has not done it, though it was dispatched."""
    found = [Choice(v, TITLES[v], _refused(v, standing, unfinished), p) for p, v in PLURALS.items()]
    return sorted(found, key=lambda c: bool(c.refused))


def _refused(verb: str, standing: Standing, unfinished: ConsumerState | None) -> str:
    if verb not in verbs_for(standing.state):
        return (
            at_consumers.refusal(verb, unfinished)
            or {
                "retry": _("Only a message that waits to be tried again, or is dead, can be retried."),
                "redispatch": _("Only what was dispatched, marked or discarded can be sent once more."),
                "mark": _("Only what is not dispatched yet can be marked."),
                "discard": _("Only what is not dispatched yet can be discarded."),
            }[verb]
        )
    waits = standing.waits
    if waits.kind == "in_flight":
        return _("It is being sent by %s right now.") % waits.by
    if waits.kind == "direct":
        return _("Its producer may be sending it right now.")
    if waits.kind == "scheduled" and verb == "retry":
        return _("It is delayed by its producer, not failed.")
    if verb == "retry" and standing.state != "dead" and waits.kind in ("due", "behind", "held", "no_owner"):
        return _("It waits for no back-off, so a retry would change nothing.")
    return ""


def dialog(message: Message, standing: Standing, verb: str, using: str, **more: Any) -> dict[str, Any]:
    """What the dialog of a verb shows. An unknown verb gives a dialog that says so."""
    plural = next((p for p, v in PLURALS.items() if v == verb), "")
    consumers = inspect.consumers(message, using)
    refused = (
        _refused(verb, standing, at_consumers.worst(consumers)) if plural else _("There is no such act.")
    )
    repeats = may_repeat(message, gather(message, using), using) if verb == "redispatch" else None
    return {
        "message": message, "standing": standing, "verb": verb, "may_repeat": repeats, "window": dedupe.window(),
        "plural": plural, "title": TITLES.get(verb, verb),
        "refused": refused, "consumers": consumers if verb in ("retry", "redispatch") else [],
        "version": standing.version, **more,
    }  # fmt: skip


def actor(request: HttpRequest) -> Actor:
    """Who acts, for the audit trail."""
    user = request.user
    return Actor(str(user.pk), user.get_username(), "dashboard", request.META.get("REMOTE_ADDR", ""))


def asked(request: HttpRequest) -> dict[str, Any]:
    """Reason, version and `again` of a POST, from a form or a JSON body. Raises InvalidMessage for what is neither."""
    if request.content_type != "application/json":
        given: Any = request.POST
    else:
        try:
            given = json.loads(request.body or b"{}")
        except (ValueError, RecursionError):
            raise InvalidMessage("body", "a JSON object", "something else") from None
        if not isinstance(given, dict):
            raise InvalidMessage("body", "a JSON object", type(given).__name__)
    for name in ("reason", "version"):
        if not isinstance(given.get(name, ""), str):
            raise InvalidMessage(name, "text", type(given.get(name)).__name__)
    again = given.get("again", False)
    if again not in (True, False, "on", "true", "false", ""):
        raise InvalidMessage("again", "true or false", again)
    return {
        "reason": given.get("reason", ""),
        "version": given.get("version") or None,
        "again": again in (True, "on", "true"),
    }


assert set(PLURALS.values()) == set(VERBS)
