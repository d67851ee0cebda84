"""A timeline as people read it: newest first, the gap before each entry, and what repeats itself folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from outbox_core.operations.timeline import Entry

FOLDED = ("failed", "returned", "maybe_sent", "duplicate")
_ATTEMPT = re.compile(r"\b(attempt|try) \d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Line:
    """One entry, or (`folded` > 0) a run of `folded` entries that say the same, from attempt `first` to `last`."""

    entry: Entry
    gap: timedelta | None
    folded: int = 0
    first: int | None = None
    last: int | None = None

    @property
    def id(self) -> str:
        """The same at each refresh, so that what a viewer has opened stays open."""
        return f"more-{self.entry.at.timestamp():.6f}-{self.entry.kind}".replace(".", "-")


def tell(entries: Sequence[Entry]) -> list[Line]:
    """Lines for entries that are sorted newest first. The newest and the oldest of a run of equals stay as they are."""
    lines: list[Line] = []
    i = 0
    while i < len(entries):
        lines.append(Line(entries[i], _gap(entries, i)))
        run = _run(entries, i)
        if run > 3:
            inner = entries[i + 1 : i + run - 1]
            lines.append(Line(inner[0], None, len(inner), inner[-1].attempt, inner[0].attempt))
            i += run - 1
        else:
            i += 1
    return lines


def _run(entries: Sequence[Entry], start: int) -> int:
    """How many entries from `start` on say the same but for the attempt."""
    if entries[start].kind not in FOLDED:
        return 1
    end = start + 1
    while end < len(entries) and _same(entries[start], entries[end]):
        end += 1
    return end - start


def _same(one: Entry, other: Entry) -> bool:
    return one.kind == other.kind and _ATTEMPT.sub("", one.text) == _ATTEMPT.sub("", other.text)


def _gap(entries: Sequence[Entry], i: int) -> timedelta | None:
    return entries[i].at - entries[i + 1].at if i + 1 < len(entries) else None
