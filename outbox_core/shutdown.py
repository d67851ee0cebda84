"""Leaving in good order: SIGTERM and SIGINT set a Stop that every loop of the process looks at."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("outbox.shutdown")

GRACE = 10.0  # seconds from the signal to the end of the process, at most
MARGIN = 0.5  # seconds before the end of the grace at which a process that does not end is ended


class Stop:
    """Asks the loops of a process to end. Once set it stays set."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._since = 0.0

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is set, at most `timeout` seconds. True if it is set."""
        return self._event.wait(timeout)

    def set(self) -> None:
        """Set it, and call what `on_stop` registered, once. From any thread, but not from a signal handler."""
        with self._lock:
            if self._event.is_set():
                return
            self._since = time.monotonic()
            self._event.set()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            _call(callback)

    def on_stop(self, fn: Callable[[], None]) -> None:
        """Call `fn` when it is set, at once if it is already. `fn` must be quick; any thread may be the caller."""
        with self._lock:
            self._callbacks.append(fn)
            late = self._event.is_set()
        if late:
            _call(fn)

    def left(self, grace: float = GRACE) -> float:
        """Seconds that remain of the grace, 0 at least; all of it while the stop is not set."""
        return max(0.0, grace - (time.monotonic() - self._since)) if self._event.is_set() else grace


@contextmanager
def stop_on_signals(stop: Stop | None = None, *, grace: float | None = None) -> Iterator[Stop]:
    """Within it, SIGTERM and SIGINT set the Stop; afterwards the former handlers are back. Main thread only.

    With `grace` (seconds), a process that has not left the block by then is ended with exit code 1: its
    transaction rolls back and its deliveries come again. A second SIGINT raises KeyboardInterrupt.
    """
    stop = stop or Stop()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(reading, stop, ended, grace), name="signals", daemon=True)
    watcher.start()
    interrupts = 0

    def on_signal(number: int, frame: Any) -> None:
        # Nothing here may take a lock: the interrupted code may hold it. The watcher does the work.
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            raise KeyboardInterrupt

    former = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    former_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(former_fd)
        for number, handler in former.items():
            signal.signal(number, handler)
        ended.set()
        os.close(writing)  # the watcher reads the end of the pipe and closes the other side
        watcher.join(1.0)


def _watch(reading: int, stop: Stop, ended: threading.Event, grace: float | None) -> None:
    """Turn signals, which the interpreter writes to the pipe as bytes, into the Stop. Ends with the block."""
    with open(reading, "rb", buffering=0) as pipe:  # open until the end: a signal may come again
        while (found := pipe.read(64)) and not {signal.SIGTERM, signal.SIGINT} & set(found):
            pass
        if not found:
            return
        stop.set()
        if not ended.wait(None if grace is None else stop.left(grace - MARGIN)):
            log.error(
                "Still busy %g s after the signal: leaving all the same",
                grace,
                extra={"action": "forced_exit"},
            )
            os._exit(1)


def _call(fn: Callable[[], None]) -> None:
    try:
        fn()
    except Exception:  # one loop that cannot be woken must not keep the others from it
        log.exception("A stop callback failed", extra={"action": "stop_callback_failed"})
