"""Late confirms: what a dispatcher learns after it lost its lease. Facts all the same, so they are recorded,
under the lock of whoever owns the partition now, one transaction per partition."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Sequence

from outbox_core import tallies
from outbox_core.models import Pending
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.leases import OwnerChanged, count_maybe_sent, lock_owner
from outbox_core.outbox.settle import Settler
from outbox_core.sql import exclusive

TRIES = 20


def record_late(using: str, worker: str, answers: list[Answer], rng: random.Random) -> None:
    """Commit each partition's confirms, and take them out of `answers`. There remains what could not be recorded yet:
    its row is locked, its partition changed hands again and again, or the database failed (which is raised)."""
    by_partition: dict[int, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_partition[answer.row.partition].append(answer)
    for partition, group in by_partition.items():
        left = _record(using, worker, partition, group, rng)
        answers[:] = [a for a in answers if a.row.partition != partition] + left


def _record(using: str, worker: str, partition: int, group: list[Answer], rng: random.Random) -> list[Answer]:
    for _ in range(TRIES):
        try:
            with exclusive(using) as db:
                if owner := lock_owner(using, partition):
                    count_open_sends(using, owner.name, owner.in_flight, group)
                settler = Settler(db, worker, rng)
                left = settler.settle(group, own=False)
                tallies.add(using, worker, settler.counts, db.now())
            return left
        except OwnerChanged:
            continue
    return group


def count_open_sends(
    using: str, name: str, in_flight: Collection[int], answers: Sequence[Answer]
) -> None:  # fmt: skip
    """A row goes with the confirm of an earlier send of it, while dispatcher `name` has another one open: the number
    of that attempt would stand nowhere if the dispatcher dies, and be given out again. Call it before settling."""
    sent_at = {a.row.id: a.row.position for a in answers if a.sent and a.row.id in in_flight}
    rows = Pending.objects.using(using).filter(message__in=sent_at).values_list("message", "position")
    going = [message for message, position in rows if position == sent_at[message]]
    detail = f"dispatcher {name} was sending it when an earlier send was confirmed"
    count_maybe_sent(using, going, name, detail)
