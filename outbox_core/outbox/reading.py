"""What a turn decides about the rows that it reads: who may go, who follows, who is set aside. No SQL of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from outbox_core.outbox.queue import START, Floor, Row

BEHIND_CLOCK = timedelta(seconds=2)
"""A floor stays this far behind the clock: rows of transactions that commit late are still above it."""

FEWEST, MOST = 16, 1024  # rows read of one partition


@dataclass(slots=True)
class Reading:
    """What one dispatcher remembers from read to read. All of it may be lost without harm."""

    batch: int
    floors: dict[int, Floor] = field(default_factory=dict)
    blocked: Counter[int] = field(default_factory=Counter)  # row -> reads in which it could not go
    boost: int = 1

    def forget(self) -> None:
        """Read from the start again: rows were lost from memory, or may have come below the floor."""
        self.floors.clear()

    def restart(self, partitions: Iterable[int]) -> None:
        """Read these from the start again: what was known of them is from before someone else owned them."""
        for partition in partitions:
            self.floors.pop(partition, None)

    def from_floors(self, partitions: Iterable[int]) -> Mapping[int, Floor]:
        return {p: self.floors.get(p, START) for p in partitions}

    def limit(self, partitions: int) -> int:
        """Rows to read of each partition."""
        return min(MOST, self.boost * max(FEWEST, 2 * self.batch // max(1, partitions)))

    def learn(self, rows: Sequence[Row], limit: int) -> None:
        """Read deeper while a partition is at its limit and the whole read came back short."""
        fullest = max(Counter(r.partition for r in rows).values(), default=0)
        if fullest >= limit and len(rows) < self.batch:
            self.boost = min(64, self.boost * 2)
        else:
            self.boost = max(1, self.boost // 2)
        if len(self.blocked) > max(10_000, 20 * self.batch):  # rows that went another way are still in it
            self.blocked.clear()


@dataclass(slots=True)
class Choice:
    """What becomes of the rows of one read."""

    heads: list[Row] = field(default_factory=list)
    aside: list[int] = field(default_factory=list)
    due: list[Row] = field(default_factory=list)  # scheduled ones that take their place now
    unclaimed: list[Row] = field(default_factory=list)  # direct ones whose producer had its time
    stranded: list[int] = field(default_factory=list)  # their destination fails


def choose(
    reading: Reading, rows: Sequence[Row], busy: set[str], room: int, now: datetime,
    strands: Callable[[Row], bool] = lambda row: False,
) -> Choice:  # fmt: skip
    """Sort the rows of a read, and move the floors past what needs no second look. `strands(row)`: its destination
    fails, so it must wait.

    `busy` are the keys that have something in flight: a row that waits only for that is left where it is, else a
    lower position that commits late would become a head beside its followers. What cannot go twice in a row, since
    an earlier one of its key must go first, is set aside.
    """
    choice = Choice()
    stuck: set[int] = set()
    busy = set(busy)
    for row in rows:
        if row.scheduled:
            choice.due.append(row)
            stuck.add(row.partition)
        elif row.free and (row.key in busy or len(choice.heads) + len(choice.unclaimed) >= room):
            stuck.add(row.partition)
        elif row.free and strands(row):
            choice.stranded.append(row.id)
        elif row.free:
            (choice.unclaimed if row.direct else choice.heads).append(row)
            if row.key:
                busy.add(row.key)
        else:
            reading.blocked[row.id] += 1
            if reading.blocked[row.id] < 2:
                stuck.add(row.partition)
            else:
                choice.aside.append(row.id)
                del reading.blocked[row.id]
        if row.partition not in stuck and row.available_at is not None:
            reading.floors[row.partition] = _floor(row.available_at, row.position, now)
    return choice


def _floor(available_at: datetime, position: int, now: datetime) -> Floor:
    ceiling = now - BEHIND_CLOCK
    return Floor(available_at, position) if available_at <= ceiling else Floor(ceiling, 0)


def lanes(
    heads: Sequence[Row], followers: Sequence[Row], flying: Mapping[int, object], now: datetime,
    stops: Callable[[Row], bool] = lambda row: False,
) -> list[list[Row]]:  # fmt: skip
    """Each head with the rows behind it that may go too: up to the first that is not due, is in flight, or waits for
    its destination (`stops`)."""
    lane = {(h.partition, h.key) if h.key else h.id: [h] for h in heads}
    cut: set[tuple[int, str]] = set()
    for row in followers:
        place = (row.partition, row.key)
        if place in cut:
            continue
        if (row.available_at is not None and row.available_at > now) or row.id in flying or stops(row):
            cut.add(place)
        else:
            lane[place].append(row)
    return list(lane.values())
