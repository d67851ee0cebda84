"""Rows that contradict each other. None should ever be found: each one is a bug, or a hand in the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Exists, Min, OuterRef, QuerySet

from outbox_core.models import PARTITIONS, Dispatch, Lease, Message, Parked, Partition, Pending
from outbox_core.outbox import leases, queue
from outbox_core.outbox.sql import exclusive

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
    for partition, key in list(stuck_keys(using)):
        if _promote(using, partition, key):
            yield Problem(f'The first message of key "{key}" was set aside behind nothing.', repaired=True)


def stuck_keys(using: str) -> Iterator[tuple[int, str]]:
    """The (partition, key) of which the first row is set aside although nothing is before it.

    Indexes: aside, lane, holds.
    """
    aside = Pending.objects.using(using).filter(available_at__isnull=True, stranded=False).order_by()
    firsts = aside.values_list("partition", "key").annotate(first=Min("position"))
    for partition, key, first in firsts.iterator(chunk_size=2000):
        lane = _lane(using, partition, key).filter(position__lt=first)
        if not lane.exists() and not _held(using, partition, key):
            yield partition, key


def _lane(using: str, partition: int, key: str) -> QuerySet[Pending]:
    """The rows of a key that have a place. The conditions are those of the index, or SQLite does not use it."""
    rows = Pending.objects.using(using).filter(partition=partition, key=key, scheduled=False)
    return rows.exclude(key="")


def _held(using: str, partition: int, key: str) -> bool:
    return Parked.objects.using(using).filter(partition=partition, key=key, holds=True).exists()


def _promote(using: str, partition: int, key: str) -> bool:
    for _ in range(TRIES):
        try:
            with exclusive(using):
                leases.lock_owner(using, partition)
                # Looked at again under the owner's lock: a turn may have been in the middle of it.
                first = _lane(using, partition, key).order_by("position").first()
                if (
                    first is None
                    or first.available_at is not None
                    or first.stranded
                    or _held(using, partition, key)
                ):
                    return False
                queue.promote(using, [(partition, key)])
                return True
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
