"""The ledger of duplicates: a copy that had no effect, and why it came."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import NamedTuple

from outbox_core import tallies
from outbox_core.inbox import kept
from outbox_core.inbox.message import Arrived
from outbox_core.models import Duplicate, Handling, Receipt


class First(NamedTuple):
    """What is known of the first copy."""

    attempt: int
    digest: str
    received_at: datetime


def first_copy(row: Receipt | Handling) -> First:
    """The first copy, from the record that it left."""
    attempt = row.attempt if isinstance(row, Receipt) else kept.attempt(row)
    return First(attempt, row.digest, row.received_at)


def cause(arrived: Arrived, first_attempt: int, *, raced: bool) -> str:
    """Why there is a second copy: the first that fits.

    A person had it sent again; a sender did not know whether it was sent (either copy is a further attempt); the
    broker did not know whether it was settled; two consumers had it at once; else its producer sent it twice.
    """
    if arrived.envelope.operation:
        return "operator"
    if arrived.attempt > 1 or first_attempt > 1:
        return "resend"
    if arrived.delivery.redelivered:
        return "redelivered"
    return "race" if raced else "producer"


def record(
    using: str,
    worker: str,
    consumer: str,
    arrived: Arrived,
    row: Receipt | Handling,
    now: datetime,
    *,
    raced: bool,
) -> Duplicate:
    """Write down a duplicate, in the caller's transaction."""
    first = first_copy(row)
    tallies.add(using, worker, Counter({tallies.Count(consumer, "duplicate"): 1}), now)
    return Duplicate.objects.using(using).create(
        consumer=consumer,
        message_id=arrived.id,
        type=arrived.type,
        cause=cause(arrived, first.attempt, raced=raced),
        gap=max(now - first.received_at, now - now),
        same_payload=arrived.digest == first.digest,
        attempt=arrived.attempt,
        digest=arrived.digest,
    )
