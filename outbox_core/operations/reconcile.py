"""Rows that contradict each other. None should ever be found: each one is a bug, or a hand in the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Exists, OuterRef

from outbox_core.models import PARTITIONS, Dispatch, Lease, Message, Parked, Partition, Pending
from outbox_core.outbox import leases
from outbox_core.outbox.alarm import BEGINNING, behind_nothing
from outbox_core.outbox.queue import Place, promote
from outbox_core.sql import exclusive

SHOWN = 20  # rows of one kind that are named
TRIES = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not fit, and whether it was repaired."""

    sentence: str
    repaired: bool = False


def reconcile(using: str = "default") -> list[Problem]:
    """Look at every row of the queue and at every message. Reads whole tables: minutes, where there are millions.

    Repairs what is set aside behind nothing, each key in a transaction of its own; all else is only reported.
    """
    return [
        *_aside_behind_nothing(using),
        *_without_message(using),
        *_queued_and_parked(using),
        *_lost(using),
        *_partitions(using),
    ]


def _aside_behind_nothing(using: str) -> Iterator[Problem]:
    for place in list(stuck_keys(using)):
        if _promote(using, place):
            yield Problem(
                f'The first message of key "{place[1]}" was set aside behind nothing.', repaired=True
            )


def stuck_keys(using: str) -> Iterator[Place]:
    """The (partition, key) of which the first row is set aside although nothing is before it."""
    after = BEGINNING
    while True:
        found, after = behind_nothing(using, after)
        yield from found
        if after == BEGINNING:
            return


def _promote(using: str, place: Place) -> bool:
    for _ in range(TRIES):
        try:
            with exclusive(using):
                leases.lock_owner(using, place[0])
                # It looks again, now under the owner's lock: a turn may have been in the middle of it.
                return bool(promote(using, [place]))
        except leases.OwnerChanged:
            continue
    return False


def _without_message(using: str) -> Iterator[Problem]:
    for model in (Pending, Parked, Dispatch):
        orphans = model.objects.using(using).exclude(
            Exists(Message.objects.using(using).filter(pk=OuterRef("message_id")))
        )
        for pk in orphans.order_by("pk").values_list("message_id", flat=True)[:SHOWN]:
            yield Problem(f"{model.__name__} {pk} has no Message.")


def _queued_and_parked(using: str) -> Iterator[Problem]:
    both = Pending.objects.using(using).filter(Exists(Parked.objects.using(using).filter(pk=OuterRef("pk"))))
    for pk in both.order_by("pk").values_list("pk", flat=True)[:SHOWN]:
        yield Problem(f"Message {pk} is queued and parked at once.")


def _lost(using: str) -> Iterator[Problem]:
    here = {"message": OuterRef("pk")}
    lost = Message.objects.using(using).exclude(
        Exists(Pending.objects.using(using).filter(**here))
    ).exclude(Exists(Parked.objects.using(using).filter(**here))).exclude(
        Exists(Dispatch.objects.using(using).filter(**here))
    )  # fmt: skip
    for pk, uuid in lost.order_by("pk").values_list("pk", "message_id")[:SHOWN]:
        yield Problem(f"Message {uuid} (row {pk}) is neither queued nor parked nor sent: it is lost.")


def _partitions(using: str) -> Iterator[Problem]:
    present = dict(Partition.objects.using(using).values_list("number", "lease"))
    if missing := sorted(set(range(PARTITIONS)) - present.keys()):
        yield Problem(
            f"Partitions {', '.join(map(str, missing))} have no row: run migrate, it makes them again."
        )
    tokens = {token for token in present.values() if token is not None}
    gone = tokens - set(Lease.objects.using(using).filter(pk__in=tokens).values_list("pk", flat=True))
    for number, token in sorted(present.items()):
        # Looked at again: a takeover between the two reads is no problem.
        if token in gone and Partition.objects.using(using).filter(number=number, lease=token).exists():
            yield Problem(f"Partition {number} is owned by lease {token}, which does not exist.")
