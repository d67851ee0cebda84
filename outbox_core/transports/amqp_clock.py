"""A clock that can stand still: while a broker blocks a connection, nothing on it is late."""

from __future__ import annotations

import time


class PausableClock:
    """Seconds that stand still while the connection is blocked."""

    def __init__(self) -> None:
        self.paused_at: float | None = None
        self._lost = 0.0

    def now(self) -> float:
        return (time.monotonic() if self.paused_at is None else self.paused_at) - self._lost

    def pause(self, paused: bool) -> None:
        if paused and self.paused_at is None:
            self.paused_at = time.monotonic()
        elif not paused and self.paused_at is not None:
            self._lost += time.monotonic() - self.paused_at
            self.paused_at = None
