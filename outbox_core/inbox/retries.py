"""Kept messages: run again when they are due, from the table.

Each run counts before it begins, in a transaction of its own, as a failure that only its end takes back. So a message
that kills its process is dead after MAX_ATTEMPTS like any other, and its neighbours are not blamed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction

from outbox_core import backoff
from outbox_core.clock import ClockTimestamp
from outbox_core.conf import settings
from outbox_core.errors import StateChanged
from outbox_core.inbox import failures, kept, lanes, locks
from outbox_core.inbox.failures import DIED, UNFINISHED
from outbox_core.inbox.outcomes import Outcome
from outbox_core.inbox.receiver import RNG, Run
from outbox_core.inbox.registry import Subscription
from outbox_core.models import Handling, Receipt

LEAST_PAUSE = 1.0  # seconds until a run that has just begun may be looked at by another process


def due(using: str, consumers: Iterable[str], limit: int) -> list[tuple[int, str]]:
    """The rows that are due, as (id, consumer), the longest due first. Index `outbox_handling_due`."""
    rows = Handling.objects.using(using).filter(
        consumer__in=list(consumers), available_at__lte=ClockTimestamp()
    )
    return list(rows.order_by("available_at", "id").values_list("id", "consumer")[:limit])


def run(using: str, id_: int, subscription: Subscription, worker: str, rng: random.Random = RNG) -> Outcome:
    """Run one due message. GONE if it is not due any more, or being run elsewhere. Raises as `receive` does."""
    row = begin(using, id_, subscription, worker, rng)
    if row is None:
        return Outcome.GONE
    if row.state == "dead":
        return Outcome.DEAD
    return _run(row, subscription, worker, rng).go()


def begin(
    using: str, id_: int, subscription: Subscription, worker: str, rng: random.Random = RNG
) -> Handling | None:
    """Count a run before it begins, and commit that. The row, dead if its last run was one too many; or None."""
    row = Handling.objects.using(using).filter(pk=id_, state="retrying").first()
    if row is None or row.message_id is None:
        return None
    this = _run(row, subscription, worker, rng)
    with transaction.atomic(using=using, durable=True):
        now = locks.take(using, row.consumer, row.message_id)
        if now is None:
            return None
        if this.in_order:
            locks.take_key(using, row.consumer, row.key)
        row = Handling.objects.using(using).filter(pk=id_, state="retrying", available_at__lte=now).first()
        if row is None:
            return None
        if Receipt.objects.using(using).filter(consumer=row.consumer, message_id=row.message_id).exists():
            this.finish(row, now)
            return None
        _count_run(this, row, now)
    return row


def _count_run(this: Run, row: Handling, now: datetime) -> None:
    if row.error_class == UNFINISHED:
        died = f"the process that ran attempt {row.attempts} ended before the handler did"
        failures.attempt(this, row, now, DIED, died, "unknown")
        if row.failures >= settings.MAX_ATTEMPTS:
            failures.bury(this, row, now, DIED, died)
            return
    row.attempts += 1
    row.failures += 1
    pause = backoff.delay(row.failures, settings.BACKOFF_BASE, settings.BACKOFF_CAP, this.rng)
    row.available_at = now + timedelta(seconds=max(LEAST_PAUSE, pause))
    row.error_class = UNFINISHED
    row.error = f"attempt {row.attempts} began at {now:%H:%M:%S} UTC on {this.worker} and has not ended"
    row.save(using=this.using)


def _run(row: Handling, subscription: Subscription, worker: str, rng: random.Random) -> Run:
    return Run(subscription, worker, kept.arrived(row), row=row, rng=rng)


def retry(using: str, id_: int) -> Handling:
    """An operator's retry: the message is due now, with no failures counted. In the caller's transaction.

    Raises Handling.DoesNotExist, and StateChanged while it runs or while an earlier message of its key holds it back.
    """
    row, now = _locked(using, id_)
    if row.state == "waiting":
        raise StateChanged("an earlier message of its key goes first: retry that one", actual_state=row.state)
    row.state, row.available_at, row.ended_at, row.failures = "retrying", now, None, 0
    if row.error_class == UNFINISHED:  # a person has seen it: that run counts no more
        row.error_class, row.error = "", ""
    row.save(using=using)
    return row


def discard(using: str, id_: int) -> Receipt:
    """An operator's discard: the row goes, and a receipt says so, so that a later copy has no effect either.

    In the caller's transaction; the next of its key may come. Raises Handling.DoesNotExist, and StateChanged while
    it runs.
    """
    row, now = _locked(using, id_)
    receipt = Receipt.objects.using(using).create(
        consumer=row.consumer, message_id=row.message_id or "", received_at=row.received_at, processed_at=now,
        outcome="rejected", digest=row.digest, attempt=kept.attempt(row), position=row.position,
    )  # fmt: skip
    key, consumer = row.key, row.consumer
    row.delete(using=using)
    if key:
        lanes.promote(using, consumer, key, now)
    return receipt


def _locked(using: str, id_: int) -> tuple[Handling, datetime]:
    row = Handling.objects.using(using).get(pk=id_)
    now = locks.take(using, row.consumer, row.message_id or "")
    if now is None:
        raise StateChanged(f"it is being handled right now by {row.consumer}", actual_state=row.state)
    if row.key:
        locks.take_key(using, row.consumer, row.key)
    row = Handling.objects.using(using).get(pk=id_)
    return row, now
