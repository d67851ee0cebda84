"""Doing a step until it is done: what to do while the database is away, or SQLite's one writer is busy."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections, reset_queries

from outbox_core import backoff
from outbox_core.shutdown import Stop

log = logging.getLogger("outbox.consumer")

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds: ceilings of the pause after a failure


class Patience:
    """Repeats steps that the database keeps from being done, with a pause that grows, until a stop; or for `limit`
    seconds, after which it raises what the step raised.

    On SQLite it also pauses after a step that wrote for as long as that took: the busy wait is not fair, and without
    the pause others starve until they give up as "locked".
    """

    def __init__(self, using: str, stop: Stop, rng: random.Random, limit: float | None = None) -> None:
        self.using, self.stop, self.limit = using, stop, limit
        self._rng = rng
        self._one_writer = connections[using].vendor == "sqlite"

    def get(
        self, step: Callable[[], T], *, writes: bool = True, passes: type[Exception] | tuple[()] = ()
    ) -> T | None:
        """The step's result; None if the stop came before it was done. Raises `passes` if the step does."""
        failures, first = 0, time.monotonic()
        while True:
            began = time.monotonic()
            try:
                result = step()
            except passes:
                raise
            except Exception as error:
                failures += 1
                if self.limit is not None and time.monotonic() - first > self.limit:
                    raise
                self._pause(error, failures)
                if self.stop.is_set():
                    return None
                continue
            reset_queries()
            if writes and self._one_writer:
                self.stop.wait(min(1.0, time.monotonic() - began))
            return result

    def do(self, step: Callable[[], None]) -> bool:
        """Do the step; False if the stop came before it was done."""

        def complete() -> bool:
            step()
            return True

        return bool(self.get(complete))

    def _pause(self, error: Exception, failures: int) -> None:
        expected = isinstance(error, DatabaseError | InterfaceError)
        log.log(
            logging.WARNING if expected else logging.ERROR, "Paused, and nothing is acked: %s", error,
            exc_info=None if expected else error, extra={"action": "database_lost"},
        )  # fmt: skip
        connections[self.using].close()
        self.stop.wait(FIRST_PAUSE / 2 + backoff.delay(failures, FIRST_PAUSE, LONGEST_PAUSE, self._rng))
