"""The relay: turn, publish, turn. Nothing is published that does not stand in a committed `in_flight`, so whoever
comes after a crash knows what may have been sent.

The main thread takes turns (`turn.py`); the transport publishes beside it, with pipelined confirms. A dispatcher that
lost its lease is *fenced*: it drops what it knows, keeps the confirms that still come as facts, and joins anew.
"""

from __future__ import annotations

import copy
import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections

from outbox_core import crash, wakeup
from outbox_core.conf import settings
from outbox_core.errors import TransportError
from outbox_core.heartbeat import Heartbeat
from outbox_core.models import PARTITIONS
from outbox_core.outbox import housekeeping, leases, queue
from outbox_core.outbox.late import record_late
from outbox_core.outbox.load import load, unsent
from outbox_core.outbox.pace import Pace
from outbox_core.outbox.reading import Reading
from outbox_core.outbox.settle import Answer
from outbox_core.outbox.sql import Dialect, exclusive
from outbox_core.outbox.turn import Memory, Turn
from outbox_core.shutdown import Stop
from outbox_core.transports import transport
from outbox_core.transports.base import Publisher, Result

log = logging.getLogger("outbox.dispatcher")

T = TypeVar("T")

LOCKED = 0.05  # seconds between tries to settle a row that someone else holds a lock on
GATHER = 0.002  # seconds to let confirms gather before a turn, while more are on their way
DRAIN = 8.0  # seconds to wait for confirms when asked to leave
PATIENCE = 10.0  # seconds that `once` waits for the broker, and for a database that fails
LONGEST_REST = 0.25  # seconds to leave SQLite's write lock to others after a turn, at most


class Dispatcher:
    """One relay for one database alias: `run` returns when it was stopped and has given everything back."""

    def __init__(self, using: str, name: str, *, rng: random.Random | None = None) -> None:
        self.using, self.name = using, name
        self.rng = rng or random.Random()
        self.publisher: Publisher = transport(using).publisher()
        self.reading = Reading(settings.BATCH_SIZE)
        self.memory = Memory(token=0)
        self.unsettled: list[Answer] = []  # answers that no committed turn has settled yet
        self.late: list[Answer] = []  # confirms that came after a fence
        self.confirmed = 0
        self._once = False
        self._announcer = wakeup.Announcer(using)
        self.pace = Pace(self.rng)
        self._turn: Turn | None = None  # the one that is being committed
        self._last_beat = -1e9

    def run(self, stop: Stop, *, once: bool = False) -> int:
        """Relay until `stop`, or with `once` until nothing is due. Returns how many messages were confirmed.

        With `once`, raises TransportError if the broker cannot be reached, and what the database raises if that is
        away; without, it waits for both.
        """
        self._once = once
        self._watch = wakeup.Watch(self.using, self._wake)
        stop.on_stop(self.publisher.wake)
        self.publisher.open()
        self._watch.start()
        try:
            with Heartbeat(self.using, "dispatcher", self.name, stop=stop) as self._heartbeat:
                started = time.monotonic()
                self._join(stop)
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
        return self.confirmed

    # -- the loop ----------------------------------------------------------------------------------------------

    def _step(self, stop: Stop) -> None:
        """Wait for a reason, then take a turn."""
        self._rest()
        self._collect()
        now = time.monotonic()
        beat = now - self._last_beat >= settings.HEARTBEAT
        # Settling promotes what waited behind, so a turn that settles also reads.
        look = self._safely(stop, lambda: self._may_look(now)) or (bool(self.unsettled) and self._room())
        if self.late:
            self._safely(stop, self._record_late)
        if beat:
            self._show()
            self._safely(stop, self._bury_others)
        if self.unsettled or beat or look:
            self._safely(stop, lambda: self._take_turn(beat, bool(look)))
        self._announcer.flush()

    def _rest(self) -> None:
        """Sleep until there are answers, a wake-up, or the time of the next look or heartbeat."""
        now = time.monotonic()
        until = self._last_beat + settings.HEARTBEAT
        if self._room():
            until = min(until, self.pace.next_look)
        if (tell := self._announcer.due()) is not None:
            until = min(until, tell)
        if self.unsettled:  # rows that someone holds a lock on: no hurry, and no spinning
            until = now + LOCKED
        self.publisher.wait(max(0.0, until - now))
        if self.publisher.outstanding and not self.pace.woken:
            time.sleep(GATHER)

    def _room(self) -> bool:
        return len(self.memory.flying) < settings.BATCH_SIZE and self.publisher.state.usable

    def _may_look(self, now: float) -> bool:
        """Is it time to read? A look that writes nothing decides, unless someone said that there is something (on
        SQLite the commits of all wake all, and two idle dispatchers would keep each other awake)."""
        if not self._room() or now < self.pace.next_look:
            return False
        woken, full = self.pace.begin_look()
        if full:
            self.reading.forget()
        db = Dialect(self.using)
        if not self.memory.mine or (woken and db.postgresql):
            return True
        found = queue.due_in(db, self.reading.from_floors(sorted(self.memory.readable)))
        if not found:
            self.pace.looked(False)
        return found

    def _wake(self, what: str) -> None:
        if what == wakeup.CHANGED and connections[self.using].vendor == "postgresql":
            return  # it tells the pages what a worker did: nothing to send. SQLite cannot tell the two apart.
        self.pace.woken = True
        self.publisher.wake()

    def _done(self, stop: Stop, started: float) -> bool:
        """For `once`: everything that is due was sent and settled, by this dispatcher or by those that live."""
        waited = time.monotonic() - started
        if not self.publisher.state.usable and waited > PATIENCE:
            raise TransportError(f"the broker cannot be reached: {self.publisher.state.detail}")
        if not self.pace.quiet or self.memory.flying or self.unsettled:
            return False
        if waited > settings.LEASE + 2 * settings.HEARTBEAT:
            return True  # whoever owns the rest by now is alive
        return self._safely(stop, self._others_due) is False

    def _others_due(self) -> bool:
        """Is anything due where another owns the partition, or nobody? It may be a dispatcher that died just now."""
        foreign = set(range(PARTITIONS)) - self.memory.mine
        return queue.due_in(Dialect(self.using), dict.fromkeys(sorted(foreign), queue.START))

    # -- one turn ----------------------------------------------------------------------------------------------

    def _take_turn(self, beat: bool, look: bool, leaving: bool = False) -> None:
        memory = copy.copy(self.memory)
        memory.flying, memory.mine = dict(memory.flying), set(memory.mine)
        turn = self._turn = Turn(memory, self.unsettled, beat, look, leaving)
        began = time.monotonic()
        turn.commit(self.using, self.name, self.reading, self.rng)
        self._adopt(turn)
        if connections[self.using].vendor != "postgresql":
            # SQLite's waiting for the write lock is not fair: leave it to others for as long as it was held.
            time.sleep(min(LONGEST_REST, time.monotonic() - began))

    def _adopt(self, turn: Turn) -> None:
        """The turn has committed: what it knew is what we know, and its batch may go."""
        if turn.settled:
            crash.point("settled")
        if turn.settled or turn.answers:
            self._announcer.note()
        self._turn = None
        if gained := turn.memory.mine - self.memory.mine:  # what waits there is read at once, from the start
            self.reading.restart(gained)
            self.pace.woken = True
        self.memory, self.unsettled = turn.memory, list(turn.left)
        self.confirmed += turn.settled
        self._heartbeat.count(turn.settled)
        if turn.beat:
            self._last_beat = time.monotonic()
        if turn.answers:
            self.pace.stir()
        if turn.may_read:
            self.pace.looked(bool(turn.lanes) or turn.more)
        deadline = turn.renewed + settings.LEASE * 0.9
        if turn.lanes:
            crash.point("marked")
            self._send(turn, deadline)
        else:
            self.publisher.extend(deadline)

    def _send(self, turn: Turn, deadline: float) -> None:
        try:
            lanes, broken = load(self.using, turn.lanes)
        except (DatabaseError, InterfaceError):
            self.unsettled += [unsent(row) for lane in turn.lanes for row in lane]
            raise
        self.unsettled += broken
        self.publisher.submit(lanes, deadline)

    def _collect(self) -> None:
        results = self.publisher.take()
        answers = [_answer(r) for r in results if not r.stale]
        if any(a.sent for a in answers):
            crash.point("confirmed")
        self.unsettled += answers
        self.late += [_answer(r) for r in results if r.stale]

    # -- when something goes wrong -----------------------------------------------------------------------------

    def _safely(self, stop: Stop, act: Callable[[], T]) -> T | None:
        """Run one database step: its result, None if it failed. A lost lease, a lost database and a lost reply to a
        COMMIT end here."""
        self._turn = None
        try:
            return act()
        except leases.Fenced:
            self._fenced(stop)
        except (DatabaseError, InterfaceError) as error:
            log.warning("The database failed in a turn: %s", error, extra={"action": "turn_failed"})
            self._after_failure(stop, self._turn)
        return None

    def _after_failure(self, stop: Stop, turn: Turn | None) -> None:
        """Did the turn commit? Ask the lease: it waits for the old session. Then go on from what is true."""
        self.reading.forget()
        self.pace.woken = True  # a wake-up may have been spent on what failed
        pause, began = 0.05, time.monotonic()
        while not stop.is_set():
            connections[self.using].close()
            try:
                number = leases.committed_turns(self.using, self.memory.token)
                break
            except (DatabaseError, InterfaceError):
                if self._once and time.monotonic() - began > PATIENCE:
                    raise
                stop.wait(pause)
                pause = min(1.0, pause * 2)
        else:
            return
        if number is None:
            self._fenced(stop)
        elif turn is not None and number > self.memory.number:
            self._safely(stop, partial(self._adopt, turn))  # loading its batch may fail as well
        else:
            stop.wait(0.05)  # a turn that fails for a reason of its own must not spin

    def _fenced(self, stop: Stop) -> None:
        log.warning(
            "Lost lease %s: another dispatcher took over; joining anew", self.memory.token,
            extra={"action": "fenced"},
        )  # fmt: skip
        self._collect()
        self.publisher.fence()
        self.late += [a for a in self.unsettled if a.sent]
        self.unsettled = []
        self._join(stop)

    def _join(self, stop: Stop) -> None:
        pause, began = 0.05, time.monotonic()
        while not stop.is_set():
            try:
                self.memory = Memory(leases.join(self.using, self.name))
                break
            except (DatabaseError, InterfaceError) as error:
                log.warning("Cannot join: %s", error, extra={"action": "join_failed"})
                connections[self.using].close()
                if self._once and time.monotonic() - began > PATIENCE:
                    raise
                stop.wait(pause)
                pause = min(1.0, pause * 2)
        self.reading.forget()
        self._last_beat = -1e9

    def _record_late(self) -> None:
        record_late(self.using, self.name, self.late, self.rng)

    def _bury_others(self) -> None:
        while leases.take_over(self.using, self.memory.token):
            log.warning("Took over from a dispatcher whose lease ran out", extra={"action": "takeover"})
        if 0 in self.memory.mine:
            housekeeping.count_committed(self.using, self.name)

    def _show(self) -> None:
        self._heartbeat.partitions, self._heartbeat.wakeup = len(self.memory.mine), self._watch.mode
        self._heartbeat.broker = self.publisher.state

    # -- leaving -----------------------------------------------------------------------------------------------

    def _drain(self, stop: Stop) -> None:
        """Send nothing more, wait for confirms, then give the lease back; what is unconfirmed is maybe sent."""
        self.publisher.extend(0)
        end = time.monotonic() + min(DRAIN, stop.left() - 1.5)
        try:
            while self.memory.flying and time.monotonic() < end:
                self.publisher.wait(min(0.1, settings.HEARTBEAT))
                self._collect()
                beat = time.monotonic() - self._last_beat >= settings.HEARTBEAT
                if self.unsettled or beat:
                    self._take_turn(beat, look=False, leaving=True)
                    self.publisher.extend(0)
            self._leave()
        except (leases.Fenced, DatabaseError, InterfaceError) as error:
            # The lease runs out by itself, and whoever takes over counts the rest as maybe sent.
            log.warning(
                "Left without giving the lease back: %s", error or "fenced", extra={"action": "left_hard"}
            )

    def _leave(self) -> None:
        self._collect()
        turn = Turn(self.memory, self.unsettled)
        turn.commit(self.using, self.name, self.reading, self.rng)
        self.confirmed += turn.settled
        with exclusive(self.using) as db:
            leases.lock_own(db, self.memory.token)
            flying = self.memory.flying
            leases.count_maybe_sent(
                self.using, flying, self.name, f"dispatcher {self.name} left before its confirm"
            )
            leases.leave(db, self.memory.token)
        if self.late:
            self._record_late()
        self._announcer.flush(now=True)


def _answer(result: Result) -> Answer:
    row, committed_at = result.send.tag
    return Answer(row, result.outcome, committed_at, result.error, result.detail)
