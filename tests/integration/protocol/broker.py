"""A broker and the lines to it, moved by hand: what is written travels, is judged, and its answer travels back, each
only when the run says so. It keeps the promises of `transports.base.Publisher`, and none that a broker does not give.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outbox_core.clock import lease_clock
from outbox_core.transports.base import BrokerState, Outcome, Result, Send

FACTS = (Outcome.CONFIRMED, Outcome.RETURNED)
Hook = Callable[..., None]


@dataclass(slots=True)
class Broker:
    """What it took, in order. `told(arrival)` hears of each; `fails` is what it does not take now."""

    rng: random.Random
    arrived: list[Send] = field(default_factory=list)
    judged: list[tuple[Send, Outcome]] = field(default_factory=list)
    told: Hook = lambda send: None
    fails: dict[str, Outcome] = field(default_factory=dict)  # type -> what becomes of it
    full: float = 0.0  # chance that a queue is full

    def take(self, send: Send) -> Outcome:
        """A message has come over a line."""
        outcome = self.fails.get(send.type, Outcome.CONFIRMED)
        if outcome is Outcome.CONFIRMED and self.rng.random() < self.full:
            outcome = Outcome.ROAD
        if outcome is Outcome.CONFIRMED:
            self.arrived.append(send)
            self.told(send)
        self.judged.append((send, outcome))
        return outcome


@dataclass(slots=True)
class Lane:
    """Messages of which the next is written on the confirm of the one before."""

    sends: Sequence[Send]
    epoch: int
    at: int = 0

    @property
    def head(self) -> Send:
        return self.sends[self.at]


class Line:
    """The publisher of one dispatcher. `write`, `carry`, `answer` and `lose` move things; the rest is the protocol.

    `wrote(line, send)` is told before a message is handed to the kernel, `submitted(line, send)` of each submission.
    """

    def __init__(self, broker: Broker, rng: random.Random, wrote: Hook, submitted: Hook) -> None:
        self.broker, self.rng, self._wrote, self._submitted = broker, rng, wrote, submitted
        self.owner: Any = None
        self.epoch, self.expired = 0, False
        self.ready: deque[Lane] = deque()
        self.wire: deque[Lane] = deque()  # heads on their way to the broker
        self.answers: deque[tuple[Lane, Outcome]] = deque()  # on their way back
        self.owed: set[int] = set()  # rows without a Result, of this epoch
        self._results: list[tuple[int, Result]] = []

    # What the run does to it.

    def write(self) -> None:
        """Hand the next head to the kernel, under the lease or not at all."""
        lane = self.ready.popleft()
        if lane.epoch != self.epoch:
            return
        if self.expired:
            self._stop(lane, Outcome.UNSENT)
            return
        self._wrote(self, lane.head)
        self.wire.append(lane)

    def carry(self) -> None:
        """The oldest message under way reaches the broker."""
        lane = self.wire.popleft()
        self.answers.append((lane, self.broker.take(lane.head)))

    def answer(self) -> None:
        """One of the broker's answers is heard; they do not come in order."""
        self.answers.rotate(-self.rng.randrange(len(self.answers)))
        lane, outcome = self.answers.popleft()
        if outcome is not Outcome.CONFIRMED:
            self._stop(lane, outcome)
            return
        self._result(lane, lane.head, outcome)
        lane.at += 1
        if lane.at < len(lane.sends) and lane.epoch == self.epoch:
            self.ready.append(lane)

    def lose(self) -> None:
        """The connection ends: some of what was under way has arrived, and no answer comes any more."""
        for _ in range(self.rng.randint(0, len(self.wire))):
            self.carry()
        for lane in [*self.wire, *(lane for lane, _ in self.answers)]:
            self._stop(lane, Outcome.UNKNOWN)
        self.wire.clear()
        self.answers.clear()
        while self.ready:
            self._stop(self.ready.popleft(), Outcome.UNSENT)

    def in_the_air(self) -> list[Send]:
        """What was written and not answered."""
        return [lane.head for lane in [*self.wire, *(lane for lane, _ in self.answers)]]

    def _stop(self, lane: Lane, outcome: Outcome) -> None:
        error = {Outcome.ROAD: "Nacked", Outcome.UNSENT: ""}.get(outcome, outcome.name.title())
        self._result(lane, lane.head, outcome, error)
        for send in lane.sends[lane.at + 1 :]:
            self._result(lane, send, Outcome.UNSENT)

    def _result(self, lane: Lane, send: Send, outcome: Outcome, error: str = "") -> None:
        if lane.epoch == self.epoch:
            self.owed.discard(send.tag[0].id)
        elif outcome not in FACTS:
            return
        self._results.append((lane.epoch, Result(send, outcome, error, outcome.value)))

    # The protocol.

    def open(self) -> None:
        pass

    def submit(self, lanes: Sequence[Sequence[Send]], deadline: float) -> None:
        self.extend(deadline)
        for sends in lanes:
            for send in sends:
                self._submitted(self, send)
                self.owed.add(send.tag[0].id)
            self.ready.append(Lane(sends, self.epoch))

    def extend(self, deadline: float) -> None:
        self.expired = lease_clock() >= deadline

    def take(self) -> list[Result]:
        taken, self._results = self._results, []
        return [
            result if epoch == self.epoch else replace(result, stale=True)
            for epoch, result in taken
            if epoch == self.epoch or result.outcome in FACTS
        ]

    def wait(self, timeout: float) -> bool:
        return bool(self._results)

    def wake(self) -> None:
        pass

    def fence(self) -> None:
        self.epoch += 1
        self.owed.clear()

    @property
    def outstanding(self) -> int:
        return len(self.owed)

    @property
    def state(self) -> BrokerState:
        return BrokerState("connected")

    def close(self, timeout: float = 5.0) -> None:
        self.ready.clear()
