"""Circuit breakers: a road whose messages all fail alike is tried by one of them at a time, not by a million.

A road is a destination and a type: together they are exchange and routing key. Its circuit opens when the broker's
queue is full (a nack: at once, it is nobody's fault), or when ALIKE messages in a row were refused or came back.
While it is open, messages that have not failed themselves are *stranded*: set aside in the queue, at no cost to
reading, and without an attempt or a failure counted. One of them goes as a probe each time the back-off is over. Those
that have failed follow their own back-off to their own end. The first confirm closes the circuit, and what is
stranded flows again (M. Nygard, Release It!, 2nd ed. 2018, ch. 5: circuit breaker).

What is known here is a dispatcher's own and may be lost without harm: `stranded` is a column, and rows that no open
circuit holds are taken back by whoever owns their partition.
"""

from __future__ import annotations

import random
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass

from outbox_core import backoff
from outbox_core.conf import settings
from outbox_core.outbox.answers import NACKED, Answer
from outbox_core.outbox.queue import Road, Row
from outbox_core.transports.base import Outcome

ALIKE = 20  # messages of a road that fail in a row before it counts as the road's own failure
LONGEST = 30.0  # seconds between two probes, at most: one message costs nothing
MOST = 1000  # roads that are remembered


@dataclass(slots=True)
class Circuit:
    """One road's. Open while `trips` is not 0; `trips` counts how often it opened without a confirm in between."""

    in_a_row: int = 0  # messages that failed, without a confirm in between
    trips: int = 0
    until: float = 0.0  # by time.monotonic(): then a probe may go
    probe: int | None = None  # the message that was sent to find out, or is about to be
    holds: bool = False  # rows may be stranded for it
    why: str = ""


class Circuits:
    """The circuits of one dispatcher."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._roads: dict[Road, Circuit] = {}
        self.flowing: set[Road] = set()  # closed again: what is stranded is to be taken back, bite by bite

    def learn(self, answers: Iterable[Answer]) -> None:
        """What the broker answered, in its order."""
        for answer in answers:
            road = answer.row.road
            if answer.sent:
                self._close(road)
            elif answer.outcome is Outcome.ROAD and answer.error == NACKED:
                self._failed(road, answer, opens=True)
            elif answer.outcome in (Outcome.RETURNED, Outcome.REFUSED) and not answer.row.failures:
                self._failed(road, answer, opens=False)
            elif (circuit := self._roads.get(road)) and circuit.probe == answer.row.id:
                circuit.probe = None  # it says nothing of the road: another one will

    def _close(self, road: Road) -> None:
        circuit = self._roads.pop(road, None)
        if circuit and circuit.holds:
            self.flowing.add(road)

    def _failed(self, road: Road, answer: Answer, opens: bool) -> None:
        if road not in self._roads and len(self._roads) >= MOST:
            self._roads = {r: c for r, c in self._roads.items() if c.trips}
        circuit = self._roads.setdefault(road, Circuit())
        circuit.in_a_row += 1
        circuit.why = answer.detail
        probed = circuit.probe == answer.row.id
        if probed or (not circuit.trips and (opens or circuit.in_a_row >= ALIKE)):
            circuit.trips += 1
            circuit.probe = None
            wait = backoff.delay(
                circuit.trips, settings.BACKOFF_BASE, min(LONGEST, settings.BACKOFF_CAP), self._rng
            )
            circuit.until = time.monotonic() + wait
            self.flowing.discard(road)

    def strands(self, row: Row) -> bool:
        """Whether this row waits for its road. One that has failed itself does not, nor does the probe."""
        circuit = self._roads.get(row.road)
        if circuit is None or not circuit.trips or row.failures or circuit.probe == row.id:
            return False
        if circuit.probe is None and time.monotonic() >= circuit.until:
            circuit.probe = row.id
            return False
        circuit.holds = True
        return True

    def stops(self, row: Row) -> bool:
        """Whether a row may not follow the one before it in its lane."""
        circuit = self._roads.get(row.road)
        return circuit is not None and circuit.trips > 0 and not row.failures

    def wanting(self, flying: Container[int]) -> list[Road]:
        """The roads of which one stranded message should now become the probe."""
        now, found = time.monotonic(), []
        for road, circuit in self._roads.items():
            if circuit.probe is not None and circuit.probe not in flying:
                circuit.probe = None  # discarded, or lost from memory
            if circuit.holds and circuit.trips and circuit.probe is None and now >= circuit.until:
                found.append(road)
        return found

    def probe_with(self, road: Road, message: int | None) -> None:
        """Send this one to find out; None: nothing is stranded for the road any more."""
        circuit = self._roads[road]
        circuit.probe, circuit.holds = message, message is not None

    def found_stranded(self, roads: Iterable[Road]) -> None:
        """Rows stand aside for these roads: those that no circuit holds are taken back."""
        for road in roads:
            circuit = self._roads.get(road)
            if circuit and circuit.trips:
                circuit.holds = True
            else:
                self.flowing.add(road)

    def busy(self, flying: Container[int]) -> bool:
        """Whether a turn has something to take back now."""
        return bool(self.flowing or self.wanting(flying))

    @property
    def problems(self) -> dict[str, str]:
        """The open ones, for people: the road -> what happens."""
        now = time.monotonic()
        return {
            " · ".join(road): (
                f"Its messages fail alike, so one is tried at a time, the next in "
                f"{max(0.0, c.until - now):.0f} s. {c.why}"
            )
            for road, c in self._roads.items()
            if c.trips
        }
