"""Receiving one message: its effect once per (consumer, message id), whatever is delivered how often.

One transaction holds the lock, the handler's writes, the messages that it publishes, the receipt and the counts
(the idempotent receiver: Hohpe and Woolf, Enterprise Integration Patterns, 2003, p. 528). The caller acks after it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
    transaction,
)

from outbox_core import context, crash, tallies
from outbox_core.inbox import duplicates, failures, kept, lanes, locks, receipts
from outbox_core.inbox.body import Undecodable
from outbox_core.inbox.message import Arrived, InboxMessage, arrive, fits
from outbox_core.inbox.outcomes import BrokenTransaction, Outcome
from outbox_core.inbox.receipts import NewReceipt
from outbox_core.inbox.registry import Handler, Subscription
from outbox_core.models import Handling, Receipt
from outbox_core.sql import Dialect
from outbox_core.transports.base import Delivery

RNG = random.Random()

# Unique indexes outbox_receipt_once and outbox_handling_once.
_SEEN = (
    f"SELECT EXISTS (SELECT 1 FROM {Receipt._meta.db_table} WHERE consumer = %s AND message_id = %s), "
    f"EXISTS (SELECT 1 FROM {Handling._meta.db_table} WHERE consumer = %s AND message_id = %s)"
)


def receive(
    delivery: Delivery,
    subscription: Subscription,
    worker: str,
    *,
    raced: bool = False,
    rng: random.Random = RNG,
) -> Outcome:
    """Handle one delivery for its consumer. On every outcome but BUSY, ack it; on BUSY keep it and call again with
    `raced`. A handler's failure is an outcome. What is raised (a lost or locked database, mostly) is not the message's
    fault: nothing was committed, nothing may be acked, and the call can be repeated."""
    return Run(subscription, worker, arrive(delivery), raced=raced, rng=rng).go()


@dataclass(slots=True)
class Run:
    """One try of one message. `row` is its Handling if it runs from there (`retries`)."""

    subscription: Subscription
    worker: str
    arrived: Arrived
    row: Handling | None = None
    raced: bool = False
    rng: random.Random = RNG
    started: bool = field(default=False, init=False)  # the handler was called
    _began: float = field(default=0.0, init=False)

    @property
    def using(self) -> str:
        return self.subscription.using

    @property
    def consumer(self) -> str:
        return self.subscription.consumer

    @property
    def in_order(self) -> bool:
        # A key that no column can hold is no key: the message is undecodable, and no other has that key.
        return self.subscription.ordered and bool(self.arrived.key) and fits(self.arrived.key)

    def go(self) -> Outcome:
        """Run it to an outcome, in one transaction, or two if the handler fails."""
        try:
            with transaction.atomic(using=self.using, durable=True):
                outcome = self._once()
        except KeyboardInterrupt:
            reset(self.using)
            raise
        except BaseException as error:  # SystemExit too: a handler must not end the worker
            reset(self.using)
            if self.started:
                return failures.record(self, error)
            # InternalError: the session was ended (idle in a transaction), or the database only reads for now.
            if isinstance(error, OperationalError | InterfaceError | InternalError) or not isinstance(
                error, Exception
            ):
                raise
            return failures.refuse(self, error)
        if outcome is Outcome.HANDLED:
            crash.point("committed")
        return outcome

    def _once(self) -> Outcome:
        now = locks.take(self.using, self.consumer, self.arrived.id)
        return Outcome.BUSY if now is None else self.decide(now)

    def decide(self, now: datetime) -> Outcome:
        """What becomes of it, in the caller's transaction, which holds the message's lock since `now`."""
        self._began = time.monotonic()
        if self.in_order:
            self._lock_key()
        if known := self._known(now):
            return known
        if self.arrived.problem:
            return self._keep_undecodable(self.arrived.problem, now)
        if self.row is None and self.arrived.delivery.redelivered:
            return self._set_aside(now)
        if self.row is None and self.in_order and lanes.held(self.using, self.consumer, self.arrived):
            return self._keep("waiting")
        return self._handle(now)

    def _lock_key(self) -> None:
        locks.take_key(self.using, self.consumer, self.arrived.key)

    def _known(self, now: datetime) -> Outcome | None:
        """What to do if the message was seen before, or None if it is to be handled."""
        if not self._seen():
            return None if self.row is None else Outcome.GONE
        receipt = Receipt.objects.using(self.using).filter(**self._identity).first()
        row = Handling.objects.using(self.using).filter(**self._identity).first()
        if self.row is not None:
            return self._still_due(self.row, receipt, row, now)
        given_up = row is not None and row.state in ("dead", "undecodable")
        if row is not None and given_up and self.arrived.envelope.operation:
            return self._revive(row, now)
        if first := receipt or row:
            duplicates.record(
                self.using, self.worker, self.consumer, self.arrived, first, now, raced=self.raced
            )
            return Outcome.DUPLICATE
        return None

    def _still_due(
        self, begun: Handling, receipt: Receipt | None, row: Handling | None, now: datetime
    ) -> Outcome | None:
        """None if the row is as it was when this run began, so that it is this run's to handle."""
        if row is None or (row.pk, row.attempts, row.state) != (begun.pk, begun.attempts, "retrying"):
            return Outcome.GONE
        if receipt is not None:
            self.finish(row, now)
            return Outcome.GONE
        return None

    def _seen(self) -> bool:
        """Whether there is any record of it: one round trip, and for most messages the only one."""
        identity = [self.consumer, self.arrived.id]
        ((receipt, row),) = Dialect(self.using).execute(_SEEN, identity * 2)
        return bool(receipt or row)

    @property
    def _identity(self) -> dict[str, str]:
        return {"consumer": self.consumer, "message_id": self.arrived.id}

    def _revive(self, row: Handling, now: datetime) -> Outcome:
        """A person sent it again: what was given up is tried again, from the new copy."""
        fresh = kept.keep(self.arrived, self.consumer, "retrying", available_at=now)
        fresh.pk, fresh.attempts, fresh.received_at = row.pk, row.attempts, row.received_at
        fresh.save(using=self.using, force_update=True)
        return Outcome.KEPT

    def _set_aside(self, now: datetime) -> Outcome:
        """It was delivered before and not settled: it may be what killed the process. So it is written down and acked
        first, and then run alone, where each run counts before it begins."""
        if self.in_order and lanes.held(self.using, self.consumer, self.arrived):
            return self._keep("waiting")
        return self._keep("retrying", available_at=now)

    def _handle(self, now: datetime) -> Outcome:
        handler = self._handler()
        if handler is None:
            reason = f'consumer "{self.consumer}" has no handler for type "{self.arrived.type}"'
            return self._keep_undecodable(reason, now, "NoHandler")
        message = InboxMessage(self.arrived, self.consumer, run=self.row.attempts if self.row else 1)
        try:
            message.payload  # noqa: B018  it is parsed and kept
        except Undecodable as error:
            return self._keep_undecodable(str(error), now)
        if self.subscription.discard_stale and not lanes.advance(
            self.using, self.consumer, self.arrived, now
        ):
            receipts.insert(self.using, [self.make_receipt("stale", now)])
            self.finish(self.row, now)
            return Outcome.STALE
        self._call(handler, message)
        self._settle(now)
        return Outcome.HANDLED

    def _handler(self) -> Handler | None:
        """By its type; a foreign one, whose type need be no routing key, else by the binding through which it came."""
        found = self.subscription.handler_for(self.arrived.type)
        if found is None and self.arrived.envelope.foreign:
            found = self.subscription.handler_for(self.arrived.delivery.routing_key)
        return found

    def _call(self, handler: Handler, message: InboxMessage) -> None:
        connection = connections[self.using]
        depth = len(connection.savepoint_ids), len(connection.atomic_blocks)
        incoming = self._incoming()
        self.started = True
        with context.handling(incoming):
            handler(message)
        if connection.needs_rollback or connection.closed_in_transaction or not connection.in_atomic_block:
            raise BrokenTransaction(
                "the handler swallowed a database error, rolled back or closed the connection inside its "
                "transaction; what may fail belongs in a savepoint: with transaction.atomic(): ..."
            )
        if depth != (len(connection.savepoint_ids), len(connection.atomic_blocks)):
            raise BrokenTransaction("the handler left a transaction.atomic() block open")

    def _incoming(self) -> context.Incoming:
        correlation = self.arrived.envelope.correlation_id
        if not correlation or not fits(correlation):
            correlation = self.arrived.id
        traceparent = self.arrived.delivery.headers.get("traceparent")
        traceparent = traceparent if isinstance(traceparent, str) else ""
        return context.Incoming(self.arrived.id, self.consumer, correlation, traceparent, self.using)

    def _settle(self, now: datetime) -> None:
        try:
            receipts.insert(self.using, [self.make_receipt("processed", now)])
        except DatabaseError as error:
            raise BrokenTransaction(f"the transaction that the handler left cannot go on: {error}") from error
        crash.point("receipt")
        self.finish(self.row, now)
        tallies.add(self.using, self.worker, {self.make_count(now): 1}, now)
        crash.point("handled")

    def make_receipt(self, outcome: str, now: datetime) -> NewReceipt:
        """The record that this consumer is done with it; not written."""
        return NewReceipt(
            self.consumer, self.arrived.id, self.row.received_at if self.row else now, outcome, self.arrived.digest,
            self.arrived.attempt, self.arrived.position,
        )  # fmt: skip

    def make_count(self, now: datetime) -> tallies.Count:
        """What the tallies learn of a handled message: how long after its publishing it is done."""
        # The database's clock, without asking again.
        end = now + timedelta(seconds=time.monotonic() - self._began)
        since = self.arrived.envelope.published_at
        latency = tallies.bucket((end - since).total_seconds()) if since else tallies.NO_LATENCY
        return tallies.Count(self.consumer, "handled", latency)

    def finish(self, row: Handling | None, now: datetime) -> None:
        """The message is done: its row goes, and the next of its key may come."""
        if row is not None:
            Handling.objects.using(self.using).filter(pk=row.pk).delete()
            if self.in_order:
                lanes.promote(self.using, self.consumer, self.arrived.key, now)

    def _keep(self, state: str, **fields: object) -> Outcome:
        kept.keep(self.arrived, self.consumer, state, **fields).save(using=self.using)
        return Outcome.KEPT

    def _keep_undecodable(self, reason: str, now: datetime, error_class: str = "Undecodable") -> Outcome:
        failures.give_up(self, now, error_class, reason)
        return Outcome.UNDECODABLE


def reset(using: str) -> None:
    """Nothing that a handler did to a connection reaches the next message."""
    connection = connections[using]
    if (
        connection.in_atomic_block
    ):  # it left a block open, and Django would take all that follows for a part of it
        connection.close()
        connection.connection = None
        connection.in_atomic_block = False
        connection.savepoint_ids.clear()
        connection.atomic_blocks.clear()
    for each in connections.all(initialized_only=True):
        each.close_if_unusable_or_obsolete()
