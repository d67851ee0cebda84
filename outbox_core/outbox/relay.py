"""What a dispatcher does with its lease: take turns, hand batches to the broker, and come through failures.

A dispatcher that lost its lease is *fenced*: it drops what it knows, keeps the confirms that still come as facts, and
joins anew. A turn whose COMMIT got no reply is asked about: the lease counts its committed turns.
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

from outbox_core import crash
from outbox_core.conf import settings
from outbox_core.outbox import leases
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.circuits import Circuits
from outbox_core.outbox.late import record_late
from outbox_core.outbox.load import load, unsent
from outbox_core.outbox.reading import Reading
from outbox_core.outbox.turn import Memory, Turn
from outbox_core.shutdown import Stop
from outbox_core.sql import Dialect, exclusive
from outbox_core.transports import transport
from outbox_core.transports.base import Publisher

log = logging.getLogger("outbox.dispatcher")

T = TypeVar("T")


class Relay:
    """A lease, a publisher, and what is between them. `adopted(turn, gained)` is told of each committed turn.

    `patience`: seconds after which a database that is away is an error; None to wait for it.
    """

    def __init__(
        self, using: str, name: str, rng: random.Random, adopted: Callable[[Turn, set[int]], None]
    ) -> None:
        self.using, self.name, self.rng = using, name, rng
        self.publisher: Publisher = transport(using).publisher()
        self.reading = Reading(settings.BATCH_SIZE)
        self.circuits = Circuits(rng)
        self.memory = Memory(token=0)
        self.unsettled: list[Answer] = []  # answers that no committed turn has settled yet
        self.late: list[Answer] = []  # confirms that came after a fence
        self.confirmed = 0
        self.patience: float | None = None
        self.stumbled = (
            False  # a step failed since this was last reset: what it was to do is still to be done
        )
        self._adopted = adopted
        self._turn: Turn | None = None  # the one that is being committed

    def take_turn(self, beat: bool, look: bool, leaving: bool = False) -> None:
        """Commit one turn, then send what it read. Raises leases.Fenced, and what the database raises."""
        memory = copy.copy(self.memory)
        memory.flying, memory.mine = dict(memory.flying), set(memory.mine)
        turn = self._turn = Turn(memory, self.circuits, self.unsettled, beat, look, leaving)
        began = time.monotonic()
        turn.commit(self.using, self.name, self.reading, self.rng)
        self._adopt(turn)
        Dialect(self.using).rest(began)

    def _adopt(self, turn: Turn) -> None:
        """The turn has committed: what it knew is what we know, and its batch may go."""
        if turn.settled:
            crash.point("settled")
        self._turn = None
        if gained := turn.memory.mine - self.memory.mine:  # what waits there is read from the start
            self.reading.restart(gained)
        self.memory, self.unsettled = turn.memory, list(turn.left)
        self.confirmed += turn.settled
        self._adopted(turn, gained)
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

    def collect(self) -> None:
        """Take what the broker has answered; the next turn settles it."""
        results = self.publisher.take()
        answers = [Answer.of(r) for r in results if not r.stale]
        if any(a.sent for a in answers):
            crash.point("confirmed")
        self.unsettled += answers
        self.late += [Answer.of(r) for r in results if r.stale]

    def safely(self, stop: Stop, act: Callable[[], T]) -> T | None:
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
        self.stumbled = True
        connections[self.using].close()
        found = self._until_answered(stop, lambda: (leases.committed_turns(self.using, self.memory.token),))
        if found is None:
            return
        (number,) = found
        if number is None:
            self._fenced(stop)
        elif turn is not None and number > self.memory.number:
            self.safely(stop, partial(self._adopt, turn))  # loading its batch may fail as well
        else:
            stop.wait(0.05)  # a turn that fails for a reason of its own must not spin

    def _fenced(self, stop: Stop) -> None:
        log.warning(
            "Lost lease %s: another dispatcher took over; joining anew", self.memory.token,
            extra={"action": "fenced"},
        )  # fmt: skip
        self.collect()
        self.publisher.fence()
        self.late += [a for a in self.unsettled if a.sent]
        self.unsettled = []
        self.join(stop)

    def join(self, stop: Stop) -> None:
        """Commit a new lease. Waits for the database until `stop`, or raises when out of patience."""
        if token := self._until_answered(stop, lambda: leases.join(self.using, self.name), "Cannot join"):
            self.memory = Memory(token)
        self.reading.forget()

    def _until_answered(self, stop: Stop, ask: Callable[[], T], said: str = "") -> T | None:
        """Ask the database until it answers; None if the stop came first. Raises what it raises when out of patience.
        `said` is logged with each error."""
        pause, began = 0.05, time.monotonic()
        while not stop.is_set():
            try:
                return ask()
            except (DatabaseError, InterfaceError) as error:
                if said:
                    log.warning("%s: %s", said, error, extra={"action": "join_failed"})
                connections[self.using].close()
                if self.patience is not None and time.monotonic() - began > self.patience:
                    raise
                stop.wait(pause)
                pause = min(1.0, pause * 2)
        return None

    def record_late(self) -> None:
        """Commit the confirms that came after a fence."""
        record_late(self.using, self.name, self.late, self.rng)

    def leave(self) -> None:
        """Settle what is known, count the rest as maybe sent, and give the lease back. Commits twice."""
        self.collect()
        turn = Turn(self.memory, self.circuits, self.unsettled)
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
            self.record_late()
