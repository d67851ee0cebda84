"""The consumer's loop: take what the broker delivers, handle it, ack it; and between deliveries, what is due again.

Nothing is acked that was not committed. While the database is away the loop pauses with what it holds; when it is told
to stop it finishes the running handler and gives the rest back.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Mapping
from functools import partial

from django.db import DatabaseError, InterfaceError

from outbox_core import crash, wakeup
from outbox_core.conf import settings
from outbox_core.errors import TransportError
from outbox_core.heartbeat import Heartbeat, worker_name
from outbox_core.inbox import bindings, retries
from outbox_core.inbox.group import Apart, receive_group
from outbox_core.inbox.holding import Holding
from outbox_core.inbox.outcomes import Outcome
from outbox_core.inbox.patience import Patience
from outbox_core.inbox.receiver import RNG, receive
from outbox_core.inbox.registry import Subscription
from outbox_core.shutdown import Stop
from outbox_core.transports import transport as configured
from outbox_core.transports.base import Delivery, Transport

log = logging.getLogger("outbox.consumer")

SLICE = 0.5  # seconds of deliveries after which kept messages have their turn
DUE_AT_ONCE = 20  # kept messages run in one turn
ACK_WITHIN = 0.1  # seconds: acks are collected so long, since with the embedded broker each is a write
ANNOUNCE_EVERY = 0.25  # seconds between two notices to the pages
TOPOLOGY_AGAIN = 5.0  # seconds until another try to declare bindings
QUIET = 0.5  # seconds without a delivery after which `once` is done
CONNECT_WITHIN = 10.0  # seconds that `once` waits for the broker


class ConsumerLoop:
    """One consumer process on one database alias, for some or all of its subscriptions.

    `run` returns how many messages came to which outcome, when `stop` is set and everything is given back; with `once`,
    when the queues are empty and nothing is due.
    """

    def __init__(
        self, using: str, subscriptions: Mapping[str, Subscription], name: str = "", *,
        transport: Transport | None = None, rng: random.Random = RNG,
    ) -> None:  # fmt: skip
        self.using, self.subscriptions, self.name = using, dict(subscriptions), name or worker_name()
        self.transport = transport or configured(using)
        self.consumer = self.transport.consumer([s.queue for s in self.subscriptions.values()])
        self.outcomes: Counter[str] = Counter()
        self._rng = rng
        self._held = Holding(self.subscriptions)
        self._unacked: list[Delivery] = []
        self._ack_by = 0.0
        self._look_at = 0.0  # when kept messages are looked at next
        self._announce = False
        self._announced = 0.0
        self._topology_at: float | None = 0.0
        self._refused: dict[str, str] = {}

    def run(self, stop: Stop, *, once: bool = False) -> Counter[str]:
        """Consume until `stop`. With `once`, raises TransportError if the broker can't be reached, and what the
        database raises if that is away; without, it waits for both."""
        self.stop, self._patient = (
            stop,
            Patience(self.using, stop, self._rng, CONNECT_WITHIN if once else None),
        )
        stop.on_stop(self.consumer.wake)
        watch = wakeup.Watch(self.using, self._on_wake)
        self._patient.do(self.consumer.open)
        watch.start()
        log.info(
            "Consuming %s", ", ".join(self.subscriptions), extra={"action": "consuming", "worker": self.name}
        )
        try:
            with Heartbeat(self.using, "consumer", self.name, stop=stop) as self.beat:
                self._loop(watch, once)
        finally:
            watch.stop()
            self._leave()
        return self.outcomes

    def _loop(self, watch: wakeup.Watch, once: bool) -> None:
        opened = quiet_since = time.monotonic()
        while not self.stop.is_set():
            self.beat.broker, self.beat.wakeup = self.consumer.state, watch.mode
            self.beat.problems = {**self._refused, **self.consumer.problems}
            self._declare()
            worked = self._take(
                self._deliveries(min(self._next(), QUIET / 2 if once else settings.POLL_INTERVAL))
            )
            worked = self._look_again() or worked
            worked = self._run_due() or worked
            self._flush()
            now = time.monotonic()
            if worked or not self.consumer.state.usable:
                quiet_since = now
            if once and not self.consumer.state.usable and now - opened > CONNECT_WITHIN:
                raise TransportError(f"the broker can't be reached: {self.consumer.state.detail}")
            if once and now - quiet_since >= QUIET and not self._held and not self._due(1):
                return

    def _next(self) -> float:
        """Seconds that the loop may wait for a delivery."""
        now = time.monotonic()
        until = [self._look_at, *self._held.times()]
        if self._announce:
            until.append(self._announced + ANNOUNCE_EVERY)
        return max(0.0, min(until) - now)

    def _deliveries(self, timeout: float) -> list[Delivery]:
        # The embedded broker stands in the database, so this may fail as anything there.
        return self._patient.get(lambda: self.consumer.receive(timeout), writes=False) or []

    # Deliveries

    def _take(self, batch: list[Delivery]) -> bool:
        turn = time.monotonic() + SLICE
        left = deque(batch)
        while left:
            if self.stop.is_set():
                self._give_back(list(left))
                return True
            group = self._next_group(left)
            if len(group) > 1:
                left.extendleft(reversed(self._take_group(group)))
            else:
                self._take_one(group[0])
            if time.monotonic() > turn:
                self._run_due()
                turn = time.monotonic() + SLICE
        return bool(batch)

    def _next_group(self, left: deque[Delivery]) -> list[Delivery]:
        """Take from the front what may share a transaction: deliveries of one queue, and none that must wait."""
        first = left.popleft()
        subscription = self.subscriptions[first.queue]
        group = [first]
        if subscription.group == 1 or self._held.holds(first):
            return group
        passed: list[Delivery] = []
        while left and len(group) < subscription.group:
            delivery = left.popleft()
            fits = delivery.queue == first.queue and not self._held.holds(delivery)
            (group if fits else passed).append(delivery)
        left.extendleft(reversed(passed))
        return group

    def _take_group(self, group: list[Delivery]) -> list[Delivery]:
        """Handle what can be handled together; returns what is to be taken again, in its order."""
        subscription = self.subscriptions[group[0].queue]
        step = partial(receive_group, group, subscription, self.name, rng=self._rng)
        try:
            outcomes = self._patient.get(step, passes=Apart)
        except Apart as apart:
            log.warning("A group is taken one by one: %s", apart.__cause__, extra={"action": "group_apart"})
            for number, delivery in enumerate(group):
                if self.stop.is_set():
                    return group[number:]
                self._take_one(delivery)
            return []
        if outcomes is None:
            return group  # the stop came first
        again = []
        for delivery, outcome in zip(group, outcomes, strict=True):
            if outcome is None:
                again.append(delivery)
            elif outcome is Outcome.BUSY:
                self._held.add(delivery, raced=True)
            else:
                self._done(outcome)
                self._ack(delivery)
        return again

    def _take_one(self, delivery: Delivery) -> None:
        if self._held.holds(delivery):
            self._held.add(delivery)
        elif self._handle(delivery) is Outcome.BUSY:
            self._held.add(delivery, raced=True)

    def _handle(self, delivery: Delivery, raced: bool = False) -> Outcome | None:
        """Handle and ack it, or give it back if the stop came first; if it is BUSY, it is still to be done."""
        subscription = self.subscriptions[delivery.queue]
        step = partial(receive, delivery, subscription, self.name, raced=raced, rng=self._rng)
        outcome = self._patient.get(step)
        if outcome is None:
            self._give_back([delivery])
        elif outcome is not Outcome.BUSY:
            self._done(outcome)
            self._ack(delivery)
        return outcome

    def _look_again(self) -> bool:
        """Take the held deliveries whose time has come, in order."""
        took = False
        while not self.stop.is_set() and (held := self._held.take()) is not None:
            took = True
            if self._handle(held.delivery, held.raced) is Outcome.BUSY:
                self._held.put_back(held)
            else:
                self._held.done(held)
        return took

    def _ack(self, delivery: Delivery) -> None:
        if not self._unacked:
            self._ack_by = time.monotonic() + ACK_WITHIN
        self._unacked.append(delivery)
        if time.monotonic() >= self._ack_by:
            self._flush()

    def _flush(self) -> None:
        """Ack what was committed, and tell the pages that something changed."""
        if self._unacked:
            settled, self._unacked = self._unacked, []
            if self._patient.do(lambda: self.consumer.ack(settled)):
                crash.point("acked")
        now = time.monotonic()
        if self._announce and now - self._announced >= ANNOUNCE_EVERY:
            self._announce, self._announced = False, now
            wakeup.announce(self.using, wakeup.CHANGED)

    # Kept messages

    def _run_due(self) -> bool:
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + settings.POLL_INTERVAL * self._rng.uniform(0.8, 1.0)
        rows = self._due(DUE_AT_ONCE)
        ran = False
        for id_, consumer in rows:
            if self.stop.is_set():
                break
            subscription = self.subscriptions[consumer]
            step = partial(retries.run, self.using, id_, subscription, self.name, self._rng)
            outcome = self._patient.get(step)
            if outcome is not None and outcome not in (Outcome.GONE, Outcome.BUSY):
                self._done(outcome)
                ran = True
        if ran:
            self._look_at = 0.0  # there may be more, and what was promoted is due at once
        return ran

    def _due(self, limit: int) -> list[tuple[int, str]]:
        return (
            self._patient.get(lambda: retries.due(self.using, self.subscriptions, limit), writes=False) or []
        )

    # The rest

    def _done(self, outcome: Outcome) -> None:
        self.outcomes[outcome] += 1
        self.beat.count()
        self._announce = True
        if outcome is Outcome.KEPT:
            self._look_at = 0.0

    def _declare(self) -> None:
        """Declare bindings and unbind what is gone, once the broker is there."""
        now = time.monotonic()
        if self._topology_at is None or now < self._topology_at or not self.consumer.state.usable:
            return
        try:
            problems = bindings.apply(self.transport, self.using)
        except (TransportError, DatabaseError, InterfaceError) as error:
            log.warning("Bindings could not be declared: %s", error, extra={"action": "topology_failed"})
            self._topology_at = now + TOPOLOGY_AGAIN
            return
        self._topology_at = None
        self._refused = {p.name: p.detail for p in problems}

    def _on_wake(self, what: str) -> None:
        self._look_at = 0.0

    def _give_back(self, deliveries: list[Delivery]) -> None:
        try:
            self.consumer.release(deliveries)
        except Exception as error:  # the embedded broker's database: it delivers again what is not acked
            log.warning(
                "Could not give back %d deliveries: %s", len(deliveries), error, extra={"action": "unsettled"}
            )

    def _leave(self) -> None:
        """Ack what was committed and give back the rest."""
        self._flush()
        self._give_back(self._held.deliveries())
        try:
            self.consumer.close(min(5.0, max(0.5, self.stop.left() - 2)))
        except (DatabaseError, InterfaceError) as error:
            log.warning("Left without settling everything: %s", error, extra={"action": "unsettled"})
        log.info("Consumer stopped", extra={"action": "stopped", "worker": self.name})
