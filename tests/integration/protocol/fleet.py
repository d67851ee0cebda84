"""The dispatchers of a run and their lines: turns, travelling messages, and what happens to a process."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from outbox_core.models import Lease
from outbox_core.outbox import leases
from outbox_core.outbox import relay as relay_module
from outbox_core.outbox.relay import Relay
from outbox_core.shutdown import Stop
from tests.integration.protocol.broker import Broker, Line
from tests.integration.protocol.mishaps import Killed, Mishaps, long_ago
from tests.integration.protocol.rules import Rules


class Patient(Stop):
    """Nobody waits in a run."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


class Fleet:
    """Always the same number of relays: one that dies or leaves is replaced. All of it happens at turn boundaries."""

    def __init__(
        self,
        size: int,
        broker: Broker,
        rules: Rules,
        rng: random.Random,
        counts: Counter[str],
        monkeypatch: Any,
    ) -> None:
        self.broker, self.rules, self.rng, self.counts = broker, rules, rng, counts
        self.stop = Patient()
        self.orphans: list[Line] = []  # lines of dead processes: the kernel still delivers what was written
        self.frozen: dict[Relay, int] = {}  # a stalled relay, and the steps that it stays so
        self.mishaps = Mishaps(rng, counts, monkeypatch)
        monkeypatch.setattr(relay_module, "transport", lambda using: self)
        self.relays = [self._join() for _ in range(size)]

    def publisher(self) -> Line:
        """As a transport: the line of one relay."""
        return Line(self.broker, self.rng, self.rules.wrote, self.rules.submitted)

    def _join(self) -> Relay:
        self.counts["relays"] += 1
        relay = Relay("default", f"relay-{self.counts['relays']}", self.rng, lambda turn, gained: None)
        relay.publisher.owner = relay
        relay.join(self.stop)
        return relay

    @property
    def lines(self) -> list[Line]:
        return [relay.publisher for relay in self.relays] + self.orphans

    def _awake(self) -> list[Relay]:
        return [relay for relay in self.relays if relay not in self.frozen]

    def thaw(self) -> None:
        """One step less for those that stand still."""
        self.frozen = {relay: steps - 1 for relay, steps in self.frozen.items() if steps > 1}

    def turn(self) -> None:
        """What a dispatcher does each time, and what may happen to it there."""
        for relay in self.rng.sample(self._awake(), min(1, len(self._awake()))):
            self.mishaps.arm()
            try:
                self._turn(relay, beat=self.rng.random() < 0.4, look=self.rng.random() < 0.8)
            except Killed:
                self._die(relay)
            self.mishaps.disarm()

    def _turn(self, relay: Relay, beat: bool, look: bool) -> None:
        token = relay.memory.token
        relay.collect()
        if relay.late:
            self.counts["late confirms"] += len(relay.late)
            relay.safely(self.stop, relay.record_late)
        relay.safely(self.stop, lambda: relay.take_turn(beat, look))
        self.counts["turns"] += 1
        self.counts["fencings"] += relay.memory.token != token

    def move(self) -> None:
        """Something travels on some line, or is handed to one."""
        lines = [relay.publisher for relay in self._awake()]
        ways: list[Callable[[], None]] = [line.write for line in lines if line.ready] * 2
        ways += [line.answer for line in lines if line.answers] * 2
        # The kernel and the broker go on, whether the process is stalled or dead.
        ways += [line.carry for line in self.lines if line.wire] * 2
        for _ in range(self.rng.randint(1, 4)):
            if ways:
                way = self.rng.choice(ways)
                ways = [w for w in ways if w != way]
                way()

    def lose(self) -> None:
        self.counts["lost connections"] += 1
        self.rng.choice(self.relays).publisher.lose()

    def kill(self) -> None:
        self._die(self.rng.choice(self.relays))

    def _die(self, relay: Relay) -> None:
        self.counts["kills"] += 1
        self.orphans.append(relay.publisher)
        self.frozen.pop(relay, None)
        self.relays[self.relays.index(relay)] = self._join()
        if self.rng.random() < 0.7:
            Lease.objects.filter(token=relay.memory.token).update(until=long_ago())

    def stall(self) -> None:
        """A process stands still beyond its lease. By its own clock its deadline is past, so it writes nothing more."""
        if len(self._awake()) > 1:
            relay = self.rng.choice(self._awake())
            self.counts["stalls"] += 1
            self.frozen[relay] = self.rng.randint(0, 60)
            relay.publisher.expired = True
            Lease.objects.filter(token=relay.memory.token).update(until=long_ago())

    def bury(self) -> None:
        """Someone notices that a lease ran out."""
        relay = self.rng.choice(self._awake())
        self.counts["takeovers"] += leases.take_over("default", relay.memory.token)

    def leave(self) -> None:
        """SIGTERM: settle what is known, count the rest as maybe sent."""
        relay = self.rng.choice(self._awake())
        self.counts["leavings"] += 1
        relay.publisher.extend(0)
        try:
            relay.leave()
        except leases.Fenced:
            self.counts["fencings"] += 1
        self.orphans.append(relay.publisher)
        self.relays[self.relays.index(relay)] = self._join()

    # The end.

    def finish(self) -> None:
        """Everyone works again, and the leases of the dead are over."""
        self.frozen.clear()
        alive = [relay.memory.token for relay in self.relays]
        Lease.objects.exclude(token__in=alive).update(until=long_ago())

    def round(self) -> None:
        """A turn of each, and everything that is under way arrives and is answered."""
        self.bury()
        for relay in self.relays:
            self._turn(relay, beat=True, look=True)
            self._empty(relay.publisher)
        for line in self.orphans:
            self._empty(line, alone=True)

    @staticmethod
    def _empty(line: Line, alone: bool = False) -> None:
        while line.wire or (not alone and (line.ready or line.answers)):
            if line.wire:
                line.carry()
            elif line.answers:
                line.answer()
            else:
                line.write()
