"""Several messages of one consumer in one transaction: one commit for all, and a savepoint for each.

A message that fails rolls back alone, and its failure is written down after the group's commit, as for one that runs
by itself. What may harm its neighbours (a lost session, a deadlock, a constraint that is checked at the commit) undoes
the group: then each is to be received by itself, and only the guilty one has a failure counted.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import DatabaseError, InterfaceError, InternalError, OperationalError, connections, transaction

from outbox_core import crash, tallies
from outbox_core.inbox import failures, lanes, locks, receipts
from outbox_core.inbox.message import arrive
from outbox_core.inbox.outcomes import Outcome
from outbox_core.inbox.receipts import NewReceipt
from outbox_core.inbox.receiver import RNG, Run, receive, reset
from outbox_core.inbox.registry import Subscription
from outbox_core.models import Handling, Receipt
from outbox_core.sql import Dialect
from outbox_core.transports.base import Delivery

log = logging.getLogger("outbox.inbox")

LONGEST = 0.5  # seconds after which a group takes no more: others wait for its locks

Outcomes = list[Outcome | None]


class Apart(Exception):
    """Nothing of the group is committed: receive each of its messages by itself."""


def receive_group(
    deliveries: Sequence[Delivery], subscription: Subscription, worker: str, *, rng: random.Random = RNG
) -> Outcomes:
    """Handle deliveries of one queue, in their order, in one transaction. Their outcomes, as of `receive`; None for
    what was not begun and is to be handed over again, at least the first having been.

    It ends before a redelivered message, which runs alone, and before a second copy of one that it has. Raises Apart,
    or what `receive` raises; then nothing may be acked.
    """
    members = _members(deliveries, subscription, worker, rng)
    if len(members) < 2:
        outcomes: Outcomes = [receive(deliveries[0], subscription, worker, rng=rng)]
    else:
        outcomes = _Group(members).go()
    return outcomes + [None] * (len(deliveries) - len(outcomes))


@dataclass(slots=True)
class Member(Run):
    """One message of a group. What it leaves to be written is written for all of them at once."""

    known: bool = True  # there is a record of it
    receipt: NewReceipt | None = field(default=None, init=False)
    count: tallies.Count | None = field(default=None, init=False)

    def _seen(self) -> bool:
        return self.known

    def _lock_key(self) -> None:
        pass  # the group has it

    def _settle(self, now: datetime) -> None:
        self.receipt, self.count = self.make_receipt("processed", now), self.make_count(now)
        self.finish(self.row, now)


def _members(
    deliveries: Sequence[Delivery], subscription: Subscription, worker: str, rng: random.Random
) -> list[Member]:
    members: list[Member] = []
    ids: set[str] = set()
    for delivery in deliveries:
        arrived = arrive(delivery)
        if delivery.redelivered or arrived.id in ids:
            break
        ids.add(arrived.id)
        members.append(Member(subscription, worker, arrived, rng=rng))
    return members


class _Group:
    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self.using, self.consumer = members[0].using, members[0].consumer
        self.outcomes: Outcomes = []
        self.failed: dict[int, BaseException] = {}  # index of the member -> what its handler raised

    def go(self) -> Outcomes:
        try:
            with transaction.atomic(using=self.using, durable=True):
                self._run()
        except KeyboardInterrupt:
            reset(self.using)
            raise
        except BaseException as error:
            reset(self.using)
            if not self._committed():
                raise Apart from error
            log.warning(
                "%s handled a group, but after its commit: %s", self.consumer, failures.describe(error),
                extra={"action": "after_commit_failed", "consumer": self.consumer},
            )  # fmt: skip
        if Outcome.HANDLED in self.outcomes:
            crash.point("committed")
        for index, raised in self.failed.items():
            self.outcomes[index] = self._record(self.members[index], raised)
        return self.outcomes

    def _run(self) -> None:
        began = time.monotonic()
        locked, now = locks.take_all(self.using, self.consumer, [m.arrived.id for m in self.members])
        self._lock_keys([m for m in self.members if m.arrived.id in locked])
        known = self._known(sorted(locked))
        stopped: set[str] = set()  # keys of an ordered consumer of which one could not go
        for index, member in enumerate(self.members):
            if index and time.monotonic() - began > LONGEST:
                break
            member.known = member.arrived.id in known
            if member.in_order and member.arrived.key in stopped:
                self.outcomes.append(None)
                continue
            outcome = self._one(index, member, now) if member.arrived.id in locked else Outcome.BUSY
            self.outcomes.append(outcome)
            if outcome in (None, Outcome.BUSY):
                stopped.add(member.arrived.key)
        self._settle(now)

    def _one(self, index: int, member: Member, now: datetime) -> Outcome | None:
        """Run one in a savepoint of its own; None if its handler failed."""
        savepoints = connections[self.using].savepoint_ids
        depth = len(savepoints)
        try:
            with transaction.atomic(using=self.using):
                return member.decide(now)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            member.receipt = member.count = None
            # Not the handler's, or perhaps its neighbours' doing: none of them may have it counted.
            if not member.started or isinstance(error, OperationalError | InterfaceError | InternalError):
                raise
            if (
                len(savepoints) != depth
            ):  # the handler left a block open, so another than its own was rolled back
                raise
            self.failed[index] = error
            return None

    def _lock_keys(self, members: list[Member]) -> None:
        """What a member would wait for, in one order for all groups: else two of them wait for each other."""
        keys = {(m.arrived.source, m.arrived.key) for m in members if m.arrived.key and not m.arrived.problem}
        subscription = self.members[0].subscription
        if subscription.ordered:
            for key in sorted({m.arrived.key for m in members if m.in_order}):
                locks.take_key(self.using, self.consumer, key)
        if subscription.discard_stale and keys:
            lanes.lock_newest(self.using, self.consumer, sorted(keys))

    def _known(self, ids: list[str]) -> set[str]:
        """Those of which there is any record: one round trip for all. Indexes: receipt_once, handling_once."""
        db = Dialect(self.using)
        condition, parameter = db.among_texts("message_id", ids)
        looks = [f"SELECT message_id FROM {model._meta.db_table} WHERE consumer = %s AND {condition}"
                 for model in (Receipt, Handling)]  # fmt: skip
        rows = db.execute(" UNION ALL ".join(looks), [self.consumer, parameter] * 2)
        return {message_id for (message_id,) in rows}

    def _settle(self, now: datetime) -> None:
        """The receipts, by message id as everyone inserts them, and the counts."""
        written = sorted((m.receipt for m in self.members if m.receipt), key=lambda r: r.message_id)
        if not written:
            return
        receipts.insert(self.using, written)
        crash.point("receipt")
        counts = tallies.Counts(m.count for m in self.members if m.count)
        tallies.add(self.using, self.members[0].worker, counts, now)
        crash.point("handled")

    def _committed(self) -> bool:
        """Whether the group is there after all: the reply to COMMIT was lost, or a hook failed after it."""
        ids = [m.arrived.id for m in self.members if m.receipt]
        try:
            found = Receipt.objects.using(self.using).filter(consumer=self.consumer, message_id__in=ids)
            return bool(ids) and found.count() == len(ids)
        except (DatabaseError, InterfaceError):
            return False

    def _record(self, member: Member, error: BaseException) -> Outcome | None:
        try:
            return failures.record(member, error)
        except (DatabaseError, InterfaceError) as lost:
            log.warning("A failure could not be written down: %s", lost, extra={"action": "database_lost"})
            return None  # it is not acked, and runs again
