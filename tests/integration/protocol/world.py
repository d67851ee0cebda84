"""One random run: several relays on one database, a broker moved by hand, and people who publish, act and prune."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F

from outbox_core import publish
from outbox_core.clock import ClockTimestamp
from outbox_core.errors import StateChanged
from outbox_core.models import Dispatch, Message, Parked, Pending
from outbox_core.operations import retention
from outbox_core.operations.verbs import act
from outbox_core.outbox import circuits, direct, queue
from outbox_core.outbox.answers import NACKED, Answer
from outbox_core.outbox.load import write_lanes
from outbox_core.outbox.outgoing import Outgoing, check
from outbox_core.outbox.queue import Floor
from outbox_core.transports.base import Outcome, Result
from tests.integration.protocol.broker import Broker
from tests.integration.protocol.fleet import Fleet
from tests.integration.protocol.rules import Rules
from tests.integration.situations import ANA

KEYS = 5
TYPES = ("good",) * 12 + ("flaky", "flaky", "refused", "refused", "bad")


class World:
    """`step()` does one thing at random and checks every rule; `drain()` lets everything come to its end."""

    def __init__(self, seed: int, relays: int, monkeypatch: Any) -> None:
        self.rng, self.counts = random.Random(seed), Counter[str]()
        self.broker = Broker(self.rng, fails={"bad": Outcome.INVALID}, full=0.02)
        self.rules = Rules(self.broker)
        self.broker.told = self.rules.arrived
        self._ahead = 0.0  # seconds that passed by `time` only
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + self._ahead)
        monkeypatch.setattr(circuits, "time", clock)
        self.fleet = fleet = Fleet(relays, self.broker, self.rules, self.rng, self.counts, monkeypatch)
        self._direct: list[Result] = []  # of direct producers, not heard yet
        self._reserved: list[int] = []  # places of transactions that have not committed yet
        self._steps = [
            (self.publish, 12), (self.publish_late, 4), (self.hear, 4), (fleet.turn, 30), (fleet.move, 60),
            (fleet.lose, 2), (fleet.kill, 1), (fleet.stall, 2), (fleet.bury, 4), (self.verb, 8), (self.time, 4),
            (self.prune, 0.2), (self.rebind, 3), (fleet.leave, 0.7),
        ]  # fmt: skip

    def step(self) -> None:
        acts, weights = zip(*self._steps, strict=True)
        self.fleet.thaw()
        deed: Callable[[], None] = self.rng.choices(acts, weights)[0]
        deed()
        self.counts["steps"] += 1
        self.rules.check()

    def publish(self) -> None:
        """One transaction: mostly keyed, some delayed, some left to a producer in direct mode."""
        with transaction.atomic():
            for _ in range(self.rng.choice([1, 2, 3, 8])):
                key = f"k{self.rng.randrange(KEYS)}" if self.rng.random() < 0.8 else ""
                delay = self.rng.uniform(1, 60) if self.rng.random() < 0.1 else None
                message = publish(self.rng.choice(TYPES), 1, key=key, delay=delay, message_id=self._id())
                self.counts["messages"] += 1
                if not key and not delay and self.rng.random() < 0.3:
                    self._leave_to_producer(message)

    def _leave_to_producer(self, message: Message) -> None:
        """It sends at once, or died; what came of it is heard later, if ever."""
        due = F("available_at") + timedelta(seconds=5)
        Pending.objects.filter(pk=message.pk).update(direct=True, available_at=due)
        ((send,),), _ = write_lanes([[direct._row(message)]], {message.pk: message})
        if self.rng.random() < 0.7:
            self.rules.written_directly(send)
            outcome = self.broker.take(send)
            self._direct.append(Result(send, outcome, NACKED if outcome is Outcome.ROAD else outcome.value))

    def hear(self) -> None:
        """A direct producer hears what came of its message, in time or long after, or loses its connection."""
        if self._direct:
            result = self._direct.pop(self.rng.randrange(len(self._direct)))
            if self.rng.random() < 0.3:
                result = replace(result, outcome=Outcome.UNKNOWN)
            direct.settle("default", "producer", [Answer.of(result)], self.rng)
            self.counts["direct answers"] += 1

    def _id(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128), version=4)

    def publish_late(self) -> None:
        """A transaction that drew its place long ago commits now: its message stands before others of its key."""
        if not Message.objects.exists():
            return
        if not self._reserved or self.rng.random() < 0.5:
            self._reserved.append(queue.next_position("default"))
            return
        id_ = self._reserved.pop(0)
        item = check(
            Outgoing(self.rng.choice(TYPES), 1, f"k{self.rng.randrange(KEYS)}", message_id=self._id())
        )
        fields = {
            f.name: getattr(item, f.name) for f in Message._meta.concrete_fields if hasattr(item, f.name)
        }
        with transaction.atomic():
            Message.objects.create(id=id_, **fields)
            Pending.objects.create(
                message_id=id_, partition=item.partition, key=item.key, position=id_, type=item.type,
                destination=item.destination, available_at=ClockTimestamp(),
            )  # fmt: skip
        self.counts["late commits"] += 1
        self.rules.without_order.add(id_)

    def verb(self) -> None:
        """A person acts; on what was sent twice while the first confirm is still on its way, most of all."""
        air = {send.tag[0].id for line in self.fleet.lines for send in line.in_the_air()}
        again = Dispatch.objects.filter(message__in=air).values_list("message", flat=True)
        model = self.rng.choice([Pending, Parked, Dispatch])
        known = model._default_manager.order_by("-pk").values_list("message", flat=True)[:20]
        verb = self.rng.choice(["retry", "redispatch", "mark", "discard"])
        if again:
            verb, known = "redispatch", again
        elif not known:
            return
        message = self.rng.choice(list(known))
        try:
            done = act(verb, message, actor=ANA, reason="r").outcome
        except StateChanged:
            self.counts["refused verbs"] += 1
            return
        self.counts[f"{verb} {done}"] += 1
        if verb in ("mark", "discard"):
            self.rules.without_order.add(message)
        elif verb == "redispatch":
            self.rules.redispatched(message)

    def time(self, seconds: float | None = None) -> None:
        """Time passes: everything becomes due sooner, and floors stay where they were in the queue."""
        seconds = self.rng.choice([0.1, 1, 5, 30]) if seconds is None else seconds
        self._ahead += seconds
        by = timedelta(seconds=seconds)
        Pending.objects.exclude(available_at=None).update(available_at=F("available_at") - by)
        for relay in self.fleet.relays:
            floors = relay.reading.floors
            relay.reading.floors = {p: Floor(f.available_at - by, f.position) for p, f in floors.items()}
        for relay in self.fleet.relays:
            if self.rng.random() < 0.3:  # the read from the start of each POLL_INTERVAL
                relay.reading.forget()

    def prune(self) -> None:
        self.counts["pruned"] += retention.prune().messages

    def rebind(self) -> None:
        """A routing key, or an exchange, comes or goes."""
        type_, outcome = self.rng.choice([("flaky", Outcome.RETURNED), ("refused", Outcome.REFUSED)])
        if self.broker.fails.pop(type_, None) is None:
            self.broker.fails[type_] = outcome

    def drain(self) -> None:
        """Everything works again. Whatever may go goes; the dead are discarded, and what they held goes too."""
        self.fleet.finish()
        self.broker.fails, self.broker.full = {"bad": Outcome.INVALID}, 0
        for round_ in range(100):
            self.time(60)
            self.fleet.round()
            for dead in Parked.objects.filter(state="dead").values_list("message", flat=True):
                act("discard", dead, actor=ANA, reason="the end")
            self.rules.check()
            if (
                round_ > 3
                and not Pending.objects.exists()
                and not any(r.memory.flying for r in self.fleet.relays)
            ):
                return
        raise AssertionError(f"stuck: {list(Pending.objects.values()[:5])}")
