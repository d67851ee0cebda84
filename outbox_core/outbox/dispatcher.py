"""The dispatcher's loop: turn, publish, turn. Nothing is published that does not stand in a committed `in_flight`, so
whoever comes after a crash knows what may have been sent.

The main thread takes turns (`turn.py`, `relay.py`); the transport publishes beside it, with pipelined confirms. This
file says when: at a wake-up, at the poll interval, when confirms have come, and at each heartbeat.
"""

from __future__ import annotations

import logging
import random
import time

from django.db import DatabaseError, InterfaceError, connections

from outbox_core import wakeup
from outbox_core.conf import settings
from outbox_core.errors import TransportError
from outbox_core.heartbeat import Heartbeat
from outbox_core.models import PARTITIONS
from outbox_core.outbox import alarm, housekeeping, leases, queue
from outbox_core.outbox.pace import Pace
from outbox_core.outbox.relay import Relay
from outbox_core.outbox.turn import Turn
from outbox_core.shutdown import Stop
from outbox_core.sql import Dialect

log = logging.getLogger("outbox.dispatcher")

LOCKED = 0.05  # seconds between tries to settle a row that someone else holds a lock on
GATHER = 0.002  # seconds to let confirms gather before a turn, while more are on their way
DRAIN = 8.0  # seconds to wait for confirms when asked to leave
PATIENCE = 10.0  # seconds that `once` waits for the broker, and for a database that fails


class Dispatcher:
    """One relay for one database alias: `run` returns when it was stopped and has given everything back."""

    def __init__(self, using: str, name: str, *, rng: random.Random | None = None) -> None:
        self.using, self.name = using, name
        rng = rng or random.Random()
        self.relay = Relay(using, name, rng, self._after_turn)
        self.publisher = self.relay.publisher
        self.pace = Pace(rng)
        self._announcer = wakeup.Announcer(using)
        self._alarm, self._next_alarm = alarm.Alarm(using), 0.0
        self._last_beat = -1e9

    def run(self, stop: Stop, *, once: bool = False) -> int:
        """Relay until `stop`, or with `once` until nothing is due. Returns how many messages were confirmed.

        With `once`, raises TransportError if the broker cannot be reached, and what the database raises if that is
        away; without, it waits for both.
        """
        self.relay.patience = PATIENCE if once else None
        self._watch = wakeup.Watch(self.using, self._wake)
        stop.on_stop(self.publisher.wake)
        self.publisher.open()
        self._watch.start()
        try:
            with Heartbeat(self.using, "dispatcher", self.name, stop=stop) as self._heartbeat:
                started = time.monotonic()
                self.relay.join(stop)
                try:
                    while not stop.is_set() and not (once and self._done(stop, started)):
                        self._step(stop)
                except TransportError:
                    self._drain(stop)
                    raise
                self._drain(stop)
        finally:
            self._watch.stop()
            # A broker that does not answer may not cost more than is left.
            self.publisher.close(min(5.0, max(0.5, stop.left() - 1)))
        return self.relay.confirmed

    def _step(self, stop: Stop) -> None:
        """Wait for a reason, then take a turn."""
        relay = self.relay
        self._rest()
        relay.collect()
        if relay.stumbled:  # a wake-up may have been spent on the step that failed
            relay.stumbled, self.pace.woken = False, True
        beat = self._beat_due()
        # Settling promotes what waited behind, so a turn that settles also reads.
        look = relay.safely(stop, self._may_look) or (bool(relay.unsettled) and self._room())
        if relay.late:
            relay.safely(stop, relay.record_late)
        if beat:
            self._show()
            relay.safely(stop, self._look_after_others)
        if relay.unsettled or beat or look:
            relay.safely(stop, lambda: relay.take_turn(beat, bool(look)))
        self._announcer.flush()

    def _rest(self) -> None:
        """Sleep until there are answers, a wake-up, or the time of the next look or heartbeat."""
        now = time.monotonic()
        until = now if self._beat_due() else self._last_beat + settings.HEARTBEAT
        if self._room():
            until = min(until, self.pace.next_look)
        if (tell := self._announcer.due()) is not None:
            until = min(until, tell)
        if self.relay.unsettled:  # rows that someone holds a lock on: no hurry, and no spinning
            until = now + LOCKED
        self.publisher.wait(max(0.0, until - now))
        if self.publisher.outstanding and not self.pace.woken:
            time.sleep(GATHER)

    def _room(self) -> bool:
        return len(self.relay.memory.flying) < settings.BATCH_SIZE and self.publisher.state.usable

    def _beat_due(self) -> bool:
        first = self.relay.memory.number == 0  # a new lease owns nothing yet
        return first or time.monotonic() - self._last_beat >= settings.HEARTBEAT

    def _may_look(self) -> bool:
        """Is it time to read? A look that writes nothing decides, unless someone said that there is something (on
        SQLite the commits of all wake all, and two idle dispatchers would keep each other awake)."""
        if not self._room() or time.monotonic() < self.pace.next_look:
            return False
        woken, full = self.pace.begin_look()
        if full:
            self.relay.reading.forget()
        db, memory = Dialect(self.using), self.relay.memory
        if not memory.mine or (woken and db.postgresql) or self.relay.circuits.busy(memory.flying):
            return True
        found = queue.due_in(db, self.relay.reading.from_floors(sorted(memory.readable)))
        if not found:
            self.pace.looked(False)
        return found

    def _wake(self, what: str) -> None:
        if what == wakeup.CHANGED and connections[self.using].vendor == "postgresql":
            return  # it tells the pages what a worker did: nothing to send. SQLite cannot tell the two apart.
        self.pace.woken = True
        self.publisher.wake()

    def _after_turn(self, turn: Turn, gained: set[int]) -> None:
        """A turn has committed: what it settled is told and counted, and what it found says when to look next."""
        if turn.answers:
            self._announcer.note()
            self.pace.stir()
        if gained:  # what waits there is read at once
            self.pace.woken = True
        self._heartbeat.count(turn.settled)
        if turn.beat:
            self._last_beat = time.monotonic()
        if turn.may_read:
            self.pace.looked(bool(turn.lanes) or turn.more)

    def _look_after_others(self) -> None:
        """What is done for all, at a heartbeat: take over from the dead, look for rows that wait for ever, count."""
        while leases.take_over(self.using, self.relay.memory.token):
            log.warning("Took over from a dispatcher whose lease ran out", extra={"action": "takeover"})
        mine = self.relay.memory.mine
        if mine and time.monotonic() >= self._next_alarm:
            self._next_alarm = time.monotonic() + alarm.EVERY
            if self._alarm.look(self.relay.memory.token, mine):
                self.pace.woken = True
        if 0 in mine:
            housekeeping.count_committed(self.using, self.name)

    def _show(self) -> None:
        self._heartbeat.partitions, self._heartbeat.wakeup = len(self.relay.memory.mine), self._watch.mode
        self._heartbeat.broker = self.publisher.state
        self._heartbeat.problems = self.relay.circuits.problems

    def _done(self, stop: Stop, started: float) -> bool:
        """For `once`: everything that is due was sent and settled, by this dispatcher or by those that live."""
        waited = time.monotonic() - started
        if not self.publisher.state.usable and waited > PATIENCE:
            raise TransportError(f"the broker cannot be reached: {self.publisher.state.detail}")
        if not self.pace.quiet or self.relay.memory.flying or self.relay.unsettled:
            return False
        if waited > settings.LEASE + 2 * settings.HEARTBEAT:
            return True  # whoever owns the rest by now is alive
        return self.relay.safely(stop, self._others_due) is False

    def _others_due(self) -> bool:
        """Is anything due where another owns the partition, or nobody? It may be a dispatcher that died just now."""
        foreign = set(range(PARTITIONS)) - self.relay.memory.mine
        return queue.due_in(Dialect(self.using), dict.fromkeys(sorted(foreign), queue.START))

    def _drain(self, stop: Stop) -> None:
        """Send nothing more, wait for confirms, then give the lease back; what is unconfirmed is maybe sent."""
        relay = self.relay
        self.publisher.extend(0)
        end = time.monotonic() + min(DRAIN, stop.left() - 1.5)
        try:
            while relay.memory.flying and time.monotonic() < end:
                self.publisher.wait(min(0.1, settings.HEARTBEAT))
                relay.collect()
                if relay.unsettled or self._beat_due():
                    relay.take_turn(self._beat_due(), look=False, leaving=True)
                    self.publisher.extend(0)
            relay.leave()
            self._announcer.flush(now=True)
        except (leases.Fenced, DatabaseError, InterfaceError) as error:
            # The lease runs out by itself, and whoever takes over counts the rest as maybe sent.
            log.warning(
                "Left without giving the lease back: %s", error or "fenced", extra={"action": "left_hard"}
            )
