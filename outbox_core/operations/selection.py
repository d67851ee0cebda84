"""Which messages: filters that a page and a command share, and pages that stay fast on big tables.

A page is driven from the small table that the state names and looks at `SEARCHED` candidates at most; it then says
how far back it came, and its cursor goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from outbox_core.errors import InvalidMessage
from outbox_core.models import Message
from outbox_core.operations.driver import Driver
from outbox_core.operations.filters import Selection

__all__ = ["SEARCHED", "Page", "Selection", "matching", "page"]

WINDOWS = (1_000, 4_000, 15_000, 30_000)
SEARCHED = sum(WINDOWS)
"""Candidates that one page looks at."""
WINDOW = 5_000  # candidates at a time where all are wanted


@dataclass(frozen=True, slots=True)
class Page:
    """Messages (without payload and headers), newest first; `next` and `previous` are cursors, or None at an end.

    `searched_to`: the search stopped at its limit of candidates, at messages of this time; `next` goes on from there.
    """

    messages: list[Message]
    next: str | None
    previous: str | None
    searched_to: datetime | None = None


def page(
    selection: Selection, after: str | None = None, before: str | None = None, limit: int = 50, using: str = "default"
) -> Page:  # fmt: skip
    """One page: the newest, or what is older than the cursor `after`, or newer than the cursor `before`.

    Raises InvalidMessage (a ValueError) for a state, a cursor or both cursors at once that make no sense.
    """
    if after and before:
        raise InvalidMessage("before", "one of after and before", "both")
    driver = Driver.choose(selection, using)
    if before:
        return _newer(driver, _position(before, "before", driver), limit)
    return _older(driver, _position(after, "after", driver) if after else None, limit)


def matching(selection: Selection, using: str = "default") -> Iterator[int]:
    """The row ids of all that match, newest first, up to `selection.limit`; without what arrives meanwhile."""
    driver = Driver.choose(selection, using)
    left, position = selection.limit, None
    while left is None or left > 0:
        window = driver.window(position, WINDOW)
        rows = window.found(left)
        yield from (message for _, message in rows)
        if window.end is None:
            return
        position = window.end
        left = None if left is None else left - len(rows)


def _older(driver: Driver, start: int | None, limit: int) -> Page:
    found: list[tuple[int, int]] = []
    position, complete = start, False
    for size in WINDOWS:
        window = driver.window(position, size)
        found += window.found(limit + 1 - len(found))
        complete, position = window.end is None, window.end
        if complete or len(found) > limit:
            break
    shown = found[:limit]
    newer = driver.cursor(shown[0][0] if shown else start) if start is not None else None
    if len(found) > limit:
        return Page(driver.messages(shown), driver.cursor(shown[-1][0]), newer)
    if complete:
        return Page(driver.messages(shown), None, newer)
    return Page(driver.messages(shown), driver.cursor(position), newer, driver.time_of(position))


def _newer(driver: Driver, start: int, limit: int) -> Page:
    found: list[tuple[int, int]] = []
    position: int | None = start
    for size in WINDOWS:
        window = driver.window(position, size, newer=True)
        found += window.found(limit + 1 - len(found))
        position = window.end
        if position is None or len(found) > limit:
            break
    shown = found[:limit][::-1]
    older = driver.cursor(shown[-1][0] if shown else start + 1)
    if len(found) > limit:
        return Page(driver.messages(shown), older, driver.cursor(shown[0][0]))
    if position is None:
        return Page(driver.messages(shown), older, None)
    return Page(driver.messages(shown), older, driver.cursor(position), driver.time_of(position))


def _position(cursor: str, field: str, driver: Driver) -> int:
    letter, digits = cursor[:1], cursor[1:]
    if letter != driver.letter or not digits.isdecimal() or len(digits) > 19:
        raise InvalidMessage(field, "a cursor of this list", cursor[:40])
    return int(digits)
