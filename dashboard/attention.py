"""What needs a person: groups of messages that failed alike, and a road that is closed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, Exists, Max, Min, OuterRef, Q
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import wording
from dashboard.ledger import PRODUCER
from dashboard.reasons import first_line
from outbox_core.models import Duplicate, Handling, Parked, Pending
from outbox_core.operations import counting, dedupe, roads
from outbox_core.operations.reception import known

CAP = 10_000  # rows that are looked at
SCAN = 100_000  # of the queue, which has no index of what failed: its newest rows
MOST = 8  # groups that are shown


@dataclass(frozen=True, slots=True)
class Need:
    """One line: how many in which state, of what, what happened, since when, and where to look."""

    state: str
    count: str
    subject: str
    place: str
    error: str
    since: datetime | None
    note: str
    link: str
    example: bool = False  # the link leads to one of several


def needs(using: str, now: datetime) -> list[Need]:
    """The dead, those that retry, what consumers could not handle, and duplicates that say something else; the
    largest groups first."""
    return [
        *_dead(using), *_stranded(using), *_retrying(using, now), *_received(using, now), *_differing(using, now),
    ]  # fmt: skip


def _dead(using: str) -> list[Need]:
    later = Pending.objects.using(using).filter(
        partition=OuterRef("partition"),
        key=OuterRef("key"),
        position__gt=OuterRef("position"),
        scheduled=False,
    )
    dead = Parked.objects.using(using).filter(state="dead")
    groups = (
        _newest(dead)
        .values("type", "destination", "error_class", "fingerprint")
        .annotate(
            n=Count("pk"),
            first=Min("at"),
            error=Max("error"),
            keys=Count("key", distinct=True, filter=Q(Exists(later), holds=True)),
        )
        .order_by("-n")[:MOST]
    )
    found = []
    for g in groups:
        keys = ngettext("holds back %d key", "holds back %d keys", g["keys"]) % g["keys"] if g["keys"] else ""
        link = _messages(
            "dead", type=g["type"], destination=g["destination"], error=g["fingerprint"] or g["error_class"]
        )
        found.append(
            Need(
                "dead",
                wording.compact(g["n"]),
                g["type"],
                g["destination"],
                g["error"] or g["error_class"],
                g["first"],
                keys,
                link,
            )
        )
    return found


def _stranded(using: str) -> list[Need]:
    return [
        Need(
            "pending",
            wording.compact(min(road.count, counting.CAP)) + ("+" if road.count > counting.CAP else ""),
            road.type,
            road.destination,
            road.why or _("Its messages fail alike."),
            road.since,
            _("one is tried at a time"),
            _messages("pending", type=road.type, destination=road.destination),
        )
        for road in roads.failing(using)
    ]


def _retrying(using: str, now: datetime) -> list[Need]:
    queue = Pending.objects.using(using)
    retrying = queue.filter(failures__gt=0, pk__in=queue.order_by("-pk").values("pk")[:SCAN])
    groups = (
        _newest(retrying)
        .values("type", "destination", "error_class")
        .annotate(n=Count("pk"), error=Max("last_error"), next=Min("available_at"))
        .order_by("-n")[:MOST]
    )
    found = []
    for g in groups:
        note = _next_try(g["next"], now)
        link = _messages("retrying", type=g["type"], destination=g["destination"], error=g["error_class"])
        found.append(
            Need(
                "retrying",
                wording.compact(g["n"]),
                g["type"],
                g["destination"],
                g["error"] or g["error_class"],
                None,
                note,
                link,
            )
        )
    return found


def _received(using: str, now: datetime) -> list[Need]:
    """What consumers gave up, could not read, or try again, each with a message as an example."""
    open_ = Handling.objects.using(using).filter(state__in=("dead", "undecodable", "retrying"))
    groups = list(
        _newest(open_)
        .values("state", "consumer", "type", "error_class")
        .annotate(
            n=Count("pk"),
            first=Min("received_at"),
            ended=Min("ended_at"),
            error=Max("error"),
            example=Max("message_id"),
            next=Min("available_at"),
        )
        .order_by("state", "-n")[:MOST]
    )
    ours = known((g["example"] for g in groups), using)
    return [
        Need(
            g["state"],
            wording.compact(g["n"]),
            g["type"],
            _("consumer %s") % g["consumer"],
            first_line(g["error"]) or g["error_class"],
            g["ended"] or g["first"],
            _next_try(g["next"], now) if g["next"] else "",
            reverse("outboard:message", args=[g["example"]]) if g["example"] in ours else "",
            g["n"] > 1,
        )
        for g in groups
    ]


def _differing(using: str, now: datetime) -> list[Need]:
    """One id with two payloads, inside the dedupe window: one of the two had no effect. Index: duplicate_differs."""
    rows = Duplicate.objects.using(using).filter(same_payload=False, at__gte=now - dedupe.window())
    groups = (
        rows.filter(pk__in=rows.order_by("-at", "-pk").values("pk")[:CAP])
        .values("consumer", "type")
        .annotate(n=Count("pk"), first=Min("at"))
        .order_by("-n")[:MOST]
    )
    return [
        Need(
            "differing",
            wording.compact(g["n"]),
            g["type"],
            _("consumer %s") % g["consumer"] if g["consumer"] else _("its producer"),
            _("The same id came with another payload, which had no effect."),
            g["first"],
            "",
            _duplicates(payload="differs", consumer=g["consumer"] or PRODUCER),
        )
        for g in groups
    ]


def _next_try(at: datetime | None, now: datetime) -> str:
    left = (at - now).total_seconds() if at else 0
    return _("next try in %s") % wording.duration(left) if left > 0 else _("next try is due")


def _newest(rows: Any) -> Any:
    return rows.model.objects.using(rows.db).filter(pk__in=rows.order_by("-pk").values("pk")[:CAP])


def _messages(state: str, **filters: str) -> str:
    query = urlencode({"state": state, **{k: v for k, v in filters.items() if v}})
    return f"{reverse('outboard:messages')}?{query}"


def _duplicates(**filters: str) -> str:
    return f"{reverse('outboard:duplicates')}?{urlencode(filters)}"
