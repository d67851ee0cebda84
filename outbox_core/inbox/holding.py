"""Deliveries that wait in a consumer, unacked: another copy is running, or (ordered) one of their key is held."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from outbox_core import envelope
from outbox_core.inbox.registry import Subscription
from outbox_core.transports.base import Delivery

AGAIN, LONGEST = 0.05, 1.0  # seconds until one is looked at again, doubled each time up to the second


@dataclass(slots=True, eq=False)
class Held:
    """One of them, until `at` (`time.monotonic()`). `raced`: another copy of it was seen running."""

    delivery: Delivery
    at: float
    pause: float = AGAIN
    raced: bool = False
    lane: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.lane = _lane(self.delivery)


class Holding:
    """In the order in which they came. Of an ordered consumer none is taken before an earlier one of its key."""

    def __init__(self, subscriptions: Mapping[str, Subscription]) -> None:
        self._subscriptions = subscriptions
        self._held: list[Held] = []

    def __len__(self) -> int:
        return len(self._held)

    def add(self, delivery: Delivery, *, raced: bool = False) -> None:
        """Hold it. `raced`: another copy of it is running; else one of its key is held."""
        self._held.append(Held(delivery, time.monotonic() + AGAIN if raced else 0.0, raced=raced))

    def holds(self, delivery: Delivery) -> bool:
        """Whether one of its key is held, so that an ordered consumer may not take it yet."""
        if not self._held or not self._subscriptions[delivery.queue].ordered:
            return False
        lane = _lane(delivery)
        return any(held.lane == lane for held in self._held)

    def take(self) -> Held | None:
        """The first whose time has come. It stays in its place until `done`."""
        now = time.monotonic()
        return next((held for held in self._heads() if held.at <= now), None)

    def times(self) -> list[float]:
        """When each that may be taken is to be looked at."""
        return [held.at for held in self._heads()]

    def _heads(self) -> Iterator[Held]:
        """All but those behind another of their key."""
        seen: set[tuple[str, str]] = set()
        for held in self._held:
            if not self._subscriptions[held.delivery.queue].ordered:
                yield held
            elif held.lane not in seen:
                seen.add(held.lane)
                yield held

    def put_back(self, held: Held) -> None:
        """Its other copy still runs: look again later."""
        held.pause = min(LONGEST, held.pause * 2)
        held.at, held.raced = time.monotonic() + held.pause, True

    def done(self, held: Held) -> None:
        self._held.remove(held)

    def deliveries(self) -> list[Delivery]:
        return [held.delivery for held in self._held]


def _lane(delivery: Delivery) -> tuple[str, str]:
    return delivery.queue, envelope.read(delivery).key
