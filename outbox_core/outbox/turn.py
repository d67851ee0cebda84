"""A turn: the one short transaction of the relay. It settles, reads, and writes down what may be sent.

READ COMMITTED on PostgreSQL, IMMEDIATE on SQLite. `Memory` is what a dispatcher knows; a turn works on a copy, which
becomes the memory only when the turn has committed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from outbox_core import crash, tallies
from outbox_core.clock import lease_clock
from outbox_core.conf import settings
from outbox_core.outbox import leases, queue, stranding
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.circuits import Circuits
from outbox_core.outbox.queue import Row
from outbox_core.outbox.reading import Reading, choose, lanes
from outbox_core.outbox.settle import Settler
from outbox_core.sql import Dialect, exclusive
from outbox_core.transports.base import Outcome


@dataclass(slots=True)
class Memory:
    """What a dispatcher knows between turns."""

    token: int
    number: int = 0  # committed turns
    flying: dict[int, Row] = field(default_factory=dict)  # everything unsettled: sent, or about to be
    mine: set[int] = field(default_factory=set)  # partitions owned
    readable: set[int] = field(default_factory=set)  # of these, those to read (the rest is being given back)


@dataclass(slots=True)
class Turn:
    """What to do in one turn, and what came of it."""

    memory: Memory
    circuits: Circuits
    answers: Sequence[Answer] = ()
    beat: bool = False
    may_read: bool = False
    leaving: bool = False
    lanes: list[list[Row]] = field(default_factory=list)  # to be sent after the commit
    left: list[Answer] = field(default_factory=list)  # locked by someone else: settle them in a later turn
    settled: int = 0  # confirms written down
    more: bool = False  # the read was cut short by the batch: there is more
    renewed: float = 0.0  # lease_clock() just before the renewal was sent: the lease holds at least from then

    def commit(self, using: str, worker: str, reading: Reading, rng: random.Random) -> None:
        """Run the transaction. Raises leases.Fenced if the lease is gone; whatever it raises, nothing was changed,
        unless the reply to the COMMIT was lost (ask `leases.committed_turns`)."""
        memory = self.memory
        with exclusive(using, hot=True) as db:
            number, now = leases.lock_own(db, memory.token)
            settler = Settler(db, worker, rng)
            self.left = settler.settle(self.answers)
            self._land(reading)
            self.circuits.learn(a for a in self.answers if a.row.id not in memory.flying)
            if self.beat:
                busy = {row.partition for row in memory.flying.values()}
                memory.mine, memory.readable = leases.rebalance(
                    db, memory.token, memory.mine, busy, self.leaving
                )
                self.circuits.found_stranded(stranding.stranded_roads(db))
            if self.may_read and not self.leaving:
                self._read(db, reading, now)
                crash.point("read")
            tallies.add(using, worker, settler.counts, now)
            memory.number = number + 1
            self.renewed = lease_clock()
            leases.renew(db, memory.token, memory.flying)

    def _land(self, reading: Reading) -> None:
        """Forget what was settled. A row that went back into the queue may stand below its floor."""
        kept = {a.row.id for a in self.left}
        for answer in self.answers:
            if answer.row.id not in kept:
                self.memory.flying.pop(answer.row.id, None)
                if answer.sent:
                    self.settled += 1
                else:
                    reading.floors.pop(answer.row.partition, None)
        if any(a.outcome is Outcome.UNSENT for a in self.answers):
            reading.forget()

    def _read(self, db: Dialect, reading: Reading, now: datetime) -> None:
        flying = self.memory.flying
        partitions = sorted(self.memory.readable)
        self._take_back(db, partitions, now)
        limit = reading.limit(len(partitions))
        rows = queue.read(db, reading.from_floors(partitions), flying, now, limit)
        reading.learn(rows, limit)
        busy = {row.key for row in flying.values() if row.key}
        room = min(settings.BATCH_SIZE, 2 * settings.BATCH_SIZE - len(flying))
        choice = choose(reading, rows, busy, room, now, self.circuits.strands)
        for row in choice.due:
            queue.place(db, row)
        queue.set_aside(db, choice.aside)
        stranding.strand(db, choice.stranded)
        heads = choice.heads + queue.claim_direct(db, choice.unclaimed)
        keyed = [row for row in heads if row.key]
        behind = queue.followers(db, keyed, max(2, settings.BATCH_SIZE // max(1, len(keyed))))
        self.lanes = lanes(heads, behind, flying, now, self.circuits.stops)
        for lane in self.lanes:
            flying.update({row.id: row for row in lane})
        waits = choice.due or choice.aside or choice.stranded or self.circuits.flowing
        self.more = bool(waits) or len(rows) >= limit

    def _take_back(self, db: Dialect, partitions: list[int], now: datetime) -> None:
        """Let stranded rows go: one for each road that is to be probed, and a batch of what flows again."""
        for road in self.circuits.wanting(self.memory.flying):
            probes = stranding.unstrand(db, road, partitions, now, 1)
            self.circuits.probe_with(road, probes[0] if probes else None)
        room = settings.BATCH_SIZE
        for road in sorted(self.circuits.flowing):
            found = stranding.unstrand(db, road, partitions, now, room) if room else []
            if room and not found:
                self.circuits.flowing.discard(road)
            room -= len(found)
