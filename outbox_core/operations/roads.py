"""Destinations that take nothing at the moment, and what waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min

from outbox_core.clock import database_now
from outbox_core.heartbeat import alive_for
from outbox_core.models import Message, Pending, Worker
from outbox_core.operations.counting import CAP
from outbox_core.outbox.stranding import stranded_roads
from outbox_core.sql import Dialect

MOST = 8  # roads that are told


@dataclass(frozen=True, slots=True)
class Road:
    """A destination and type of which messages are stranded: how many (CAP + 1 stands for more), since when
    the oldest waits, and what its dispatcher says of it."""

    destination: str
    type: str
    count: int
    since: datetime | None
    why: str = ""


def failing(using: str = "default") -> list[Road]:
    """The roads that messages are stranded for. One index probe if there are none. Index: stranded."""
    roads = stranded_roads(Dialect(using), MOST)
    if not roads:
        return []
    told = _told(using)
    found = []
    for destination, type in roads:
        rows = Pending.objects.using(using).filter(destination=destination, type=type, stranded=True)
        seen = rows.filter(pk__in=rows.order_by().values("pk")[: CAP + 1]).aggregate(
            n=Count("pk"), first=Min("pk")
        )
        since = (
            Message.objects.using(using).filter(pk=seen["first"]).values_list("created_at", flat=True).first()
        )
        found.append(Road(destination, type, seen["n"], since, told.get(f"{destination} · {type}", "")))
    return found


def _told(using: str) -> dict[str, str]:
    """What live dispatchers say of their roads."""
    since = database_now(using) - alive_for()
    workers = Worker.objects.using(using).filter(kind="dispatcher", heartbeat__gte=since)
    told: dict[str, str] = {}
    for problems in workers.values_list("problems", flat=True):
        told.update(problems)
    return told
