"""The verbs as actions of a list: choose messages, say why, see what became of them.

Between the list and the act stands a page that shows each message with its state. The versions that it shows come
back with the reason, so what changed meanwhile is refused, and so is a second click.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from outbox_core.admin.payloads import actor
from outbox_core.errors import OutboxError, StateChanged
from outbox_core.models import Message
from outbox_core.operations import audit, dedupe
from outbox_core.operations.facts import versions
from outbox_core.operations.verbs import act
from outbox_core.operations.words import DONE, duration, plural
from outbox_core.states import VERBS

MOST = 1_000  # messages of one request; more is for the command line
TOLD = 10  # refusals that are spelt out


class ReasonForm(forms.Form):
    """Why, whether past the dedupe window too, and which messages as they were shown: `row:version` for each."""

    reason = forms.CharField(
        max_length=audit.LONGEST_REASON,
        label="Reason",
        widget=forms.TextInput(attrs={"size": 60, "autofocus": True}),
    )
    again = forms.BooleanField(required=False)
    chosen = forms.CharField(widget=forms.HiddenInput)

    def clean_chosen(self) -> dict[int, str]:
        pairs = [item.partition(":") for item in self.cleaned_data["chosen"].split(",")]
        if len(pairs) > MOST or not all(pk.isdecimal() and version for pk, _, version in pairs):
            raise forms.ValidationError("The selection could not be read. Go back and choose again.")
        return {int(pk): version for pk, _, version in pairs}


class Acting(admin.ModelAdmin):  # type: ignore[type-arg]
    """Adds the four verbs to a list whose rows are messages, or have their row id as primary key."""

    actions = tuple(VERBS)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("outbox_core.operate_message")

    def _retry(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return perform(self, request, queryset, "retry")

    def _redispatch(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return perform(self, request, queryset, "redispatch")

    def _mark(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return perform(self, request, queryset, "mark")

    def _discard(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return perform(self, request, queryset, "discard")

    retry = admin.action(permissions=["operate"], description="Retry now")(_retry)
    redispatch = admin.action(permissions=["operate"], description="Redispatch: send once more")(_redispatch)
    mark = admin.action(permissions=["operate"], description="Mark as dispatched, without sending")(_mark)
    discard = admin.action(permissions=["operate"], description="Discard: never send")(_discard)


def perform(
    model_admin: Any, request: HttpRequest, queryset: QuerySet[Any], verb: str
) -> HttpResponse | None:  # fmt: skip
    """First the page that asks for the reason; then the acts, and back to the list."""
    if "apply" in request.POST:
        form = ReasonForm(request.POST)
        if form.is_valid():
            _apply(
                model_admin,
                request,
                verb,
                form.cleaned_data["chosen"],
                form.cleaned_data["reason"],
                queryset.db,
                form.cleaned_data["again"],
            )
            return None
        if "chosen" in form.errors:
            model_admin.message_user(request, form.errors["chosen"][0], messages.ERROR)
            return None
        shown = dict(item.split(":", 1) for item in request.POST["chosen"].split(","))
        return _ask(model_admin, request, verb, [int(pk) for pk in shown], form, queryset.db)
    pks = list(queryset.order_by("-pk").values_list("pk", flat=True)[: MOST + 1])
    if len(pks) > MOST:
        text = f"Choose at most {MOST:,} messages here; for more use manage.py outbox_{verb}."
        model_admin.message_user(request, text, messages.ERROR)
        return None
    return _ask(model_admin, request, verb, pks, None, queryset.db)


def _ask(
    model_admin: Any, request: HttpRequest, verb: str, pks: list[int], form: ReasonForm | None, using: str
) -> HttpResponse:  # fmt: skip
    found = versions(pks, using)
    as_shown = ",".join(f"{pk}:{version}" for pk, (_, version) in found.items())
    if form is None:
        form = ReasonForm(initial={"chosen": as_shown})
    states = Counter(version.partition(".")[0] for _, version in found.values())
    rows = [
        {"message_id": uuid, "state": state, "fits": state in VERBS[verb]}
        for uuid, version in list(found.values())[:TOLD]
        for state in [version.partition(".")[0]]
    ]
    context = {
        **model_admin.admin_site.each_context(request), "title": f"{verb.capitalize()} {plural(len(found), 'message')}",
        "opts": model_admin.model._meta, "verb": verb, "form": form, "rows": rows, "more": len(found) - len(rows),
        "states": sorted(states.items()), "misfits": sum(n for s, n in states.items() if s not in VERBS[verb]),
        "window": duration(dedupe.window().total_seconds()) if verb == "redispatch" else "",
        "first": next(iter(found), ""), "checkbox": ACTION_CHECKBOX_NAME, "media": model_admin.media,
    }  # fmt: skip
    return TemplateResponse(request, "admin/outbox_core/act.html", context)


def _apply(
    model_admin: Any, request: HttpRequest, verb: str, chosen: dict[int, str], reason: str, using: str, again: bool
) -> None:  # fmt: skip
    """Each message in a transaction of its own, oldest first; then say how many were done, and what was left alone."""
    who, done, left = actor(request), Counter[str](), list[str]()
    for pk, version in sorted(chosen.items()):
        try:
            acted = act(verb, pk, actor=who, reason=reason, version=version, using=using, again=again)
            done[acted.outcome] += 1
        except (StateChanged, OutboxError) as refusal:
            left.append(str(refusal))
        except Message.DoesNotExist:
            left.append(f"Row {pk} was pruned meanwhile.")
    tell: Callable[..., None] = model_admin.message_user
    if done["done"]:
        tell(request, f"{plural(done['done'], 'message')} {DONE[verb]}.", messages.SUCCESS)
    if done["unchanged"]:
        tell(
            request,
            f"{plural(done['unchanged'], 'message')} unchanged: due already, or behind another.",
            messages.INFO,
        )
    if left:
        more = f" And {len(left) - TOLD:,} more." if len(left) > TOLD else ""
        tell(
            request,
            f"{plural(len(left), 'message')} refused. {' '.join(left[:TOLD])}{more}",
            messages.WARNING,
        )
