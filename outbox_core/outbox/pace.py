"""When a dispatcher looks for messages: at once when woken, soon after the last one, else at the poll interval."""

from __future__ import annotations

import random
import time

from outbox_core.conf import settings

LINGER = (0.005, 0.01, 0.02, 0.04, 0.08)
"""Seconds between looks after the last row: they find what the coalescing of wake-ups swallowed."""


class Pace:
    """The time of the next look, and of the next read from the start of every partition."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.woken = True  # someone said that there is something; set from another thread
        self._looks = 0  # looks that found nothing, since something was found
        self._next_look = self._last_full = -1e9

    @property
    def next_look(self) -> float:
        """By `time.monotonic()`; in the past when woken."""
        return 0.0 if self.woken else self._next_look

    @property
    def quiet(self) -> bool:
        """Nobody woke us, and every look of the lingering found nothing."""
        return not self.woken and self._looks > len(LINGER)

    def begin_look(self) -> tuple[bool, bool]:
        """Called before a look: was it woken for, and is it time to read from the start again?

        Reading from the start finds rows of transactions that committed late, below the floor.
        """
        woken, self.woken = self.woken, False
        full = time.monotonic() - self._last_full >= settings.POLL_INTERVAL
        if full:
            self._last_full = time.monotonic()
        return woken, full

    def looked(self, found: bool) -> None:
        """Called after a look."""
        self._looks = 0 if found else self._looks + 1
        pause = settings.POLL_INTERVAL * self._rng.uniform(0.8, 1.0)
        if self._looks <= len(LINGER):
            pause = LINGER[max(0, self._looks - 1)]
        self._next_look = time.monotonic() + pause

    def stir(self) -> None:
        """Something was settled, so something may have been promoted: linger again."""
        self._looks = 0
