"""Pruning: facts that are old enough go, in small batches; what is pending, dead or being handled never does.

The audit trail is not pruned, and no receipt inside the dedupe window (see `dedupe`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from outbox_core.clock import database_now
from outbox_core.conf import settings
from outbox_core.models import Dispatch, Duplicate, FailedAttempt, Handling, Message, Parked, Pending, Receipt
from outbox_core.operations import dedupe

BATCH = 500


@dataclass(slots=True)
class Pruned:
    """How many rows went."""

    messages: int = 0
    receipts: int = 0
    failures: int = 0
    duplicates: int = 0


def prune(
    using: str = "default", *, batch: int = BATCH, go_on: Callable[[], bool] = lambda: True
) -> Pruned:  # fmt: skip
    """Delete what `OUTBOX["RETENTION"]` lets go, each batch in a transaction of its own, until `go_on` says no.

    `dispatched` days after the last confirm (or after it was marked or discarded) a message goes, with its sends and
    failed attempts. `failures` is for failed attempts and duplicates, `receipts` for the inbox.
    """
    now = database_now(using)
    pruned = Pruned()
    cutoff = {name: now - timedelta(days=days) for name, days in settings.RETENTION.items()}
    pruned.messages = _prune_messages(using, cutoff["dispatched"], batch, go_on)
    pruned.receipts = _prune_receipts(using, now - dedupe.window(), batch, go_on)
    pruned.failures = _prune_failures(using, cutoff["failures"], batch, go_on)
    pruned.duplicates = _prune_duplicates(using, cutoff["failures"], batch, go_on)
    return pruned


def _prune_messages(using: str, cutoff: datetime, batch: int, go_on: Callable[[], bool]) -> int:
    messages = Message.objects.using(using)
    # Index: message_created for the end, the primary key for the walk.
    last = (
        messages.filter(created_at__lt=cutoff)
        .order_by("created_at", "id")
        .values_list("pk", flat=True)
        .last()
    )
    deleted, position = 0, 0
    while last is not None and go_on():
        old = messages.filter(pk__gt=position, pk__lte=last, created_at__lt=cutoff).order_by("pk")
        pks = list(old.values_list("pk", flat=True)[:batch])
        if not pks:
            break
        position = pks[-1]
        deleted += _prune_batch(using, pks, cutoff)
    return deleted


def _prune_batch(using: str, pks: list[int], cutoff: datetime) -> int:
    with transaction.atomic(using=using):
        locked = (
            Message.objects.using(using).filter(pk__in=pks).order_by("pk").select_for_update(skip_locked=True)
        )
        uuids = dict(locked.values_list("pk", "message_id"))
        # A second statement, with a later snapshot: a redispatch that committed before the lock must be seen.
        going = sorted(uuids.keys() - _needed(using, uuids, cutoff))
        for model in (Dispatch, FailedAttempt, Parked):
            model.objects.using(using).filter(message__in=going).delete()
        Message.objects.using(using).filter(pk__in=going).delete()
    return len(going)


def _needed(using: str, uuids: dict[int, UUID], cutoff: datetime) -> set[int]:
    """Those that stay: queued, dead, being handled, acted on or sent not long ago, or in no state at all (lost)."""
    pks = list(uuids)
    parked = dict(Parked.objects.using(using).filter(pk__in=pks).values_list("pk", "state"))
    recent = Parked.objects.using(using).filter(pk__in=pks).filter(Q(state="dead") | Q(at__gte=cutoff))
    sent = Dispatch.objects.using(using).filter(message__in=pks)
    sent_ever = set(sent.values_list("message", flat=True))
    ids = [str(uuid) for uuid in uuids.values()]
    handled = set(
        Handling.objects.using(using).filter(message_id__in=ids).values_list("message_id", flat=True)
    )
    return (
        set(Pending.objects.using(using).filter(pk__in=pks).values_list("pk", flat=True))
        | set(recent.values_list("pk", flat=True))
        | set(sent.filter(at__gte=cutoff).values_list("message", flat=True))
        | {pk for pk, uuid in uuids.items() if str(uuid) in handled}
        | {pk for pk in pks if pk not in parked and pk not in sent_ever}
    )


def _prune_receipts(using: str, cutoff: datetime, batch: int, go_on: Callable[[], bool]) -> int:
    def going(rows: Any) -> list[int]:
        ids = {pk: _uuid(text) for pk, text in rows.values_list("pk", "message_id")}
        uuids = [u for u in ids.values() if u]
        ours = list(Message.objects.using(using).filter(message_id__in=uuids).only("message_id"))
        stay = dedupe.protected(ours, using, cutoff)
        kept = {m.message_id for m in ours if m.pk in stay}
        return [pk for pk, uuid in ids.items() if uuid not in kept]

    old = Receipt.objects.using(using).filter(processed_at__lt=cutoff)
    return _walk(old, "processed_at", batch, go_on, going)


def _prune_failures(using: str, cutoff: datetime, batch: int, go_on: Callable[[], bool]) -> int:
    def going(rows: Any) -> list[int]:
        queued = Pending.objects.using(using).filter(message=OuterRef("message"))
        parked = Parked.objects.using(using).filter(message=OuterRef("message"), state="dead")
        handled = Handling.objects.using(using).filter(message_id=OuterRef("foreign_id"))
        return list(
            rows.exclude(Exists(queued))
            .exclude(Exists(parked))
            .exclude(Exists(handled))
            .values_list("pk", flat=True)
        )

    old = FailedAttempt.objects.using(using).filter(at__lt=cutoff)
    return _walk(old, "at", batch, go_on, going)


def _prune_duplicates(using: str, cutoff: datetime, batch: int, go_on: Callable[[], bool]) -> int:
    old = Duplicate.objects.using(using).filter(at__lt=cutoff)
    return _walk(old, "at", batch, go_on, lambda rows: list(rows.values_list("pk", flat=True)))


def _walk(
    rows: Any, time: str, batch: int, go_on: Callable[[], bool], going: Callable[[Any], list[int]]
) -> int:  # fmt: skip
    """Delete in batches along the index (time, id), past what must stay. Returns how many went."""
    deleted, last = 0, None
    while go_on():
        ahead = rows.order_by(time, "pk")
        if last is not None:
            ahead = ahead.filter(Q(**{f"{time}__gt": last[0]}) | Q(**{time: last[0], "pk__gt": last[1]}))
        found = list(ahead.values_list(time, "pk")[:batch])
        if not found:
            break
        last = found[-1]
        chosen = going(rows.model.objects.using(rows.db).filter(pk__in=[pk for _, pk in found]))
        deleted += rows.model.objects.using(rows.db).filter(pk__in=chosen).delete()[0]
    return deleted


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
