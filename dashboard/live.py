"""The change feed: one per web process, started by its first socket and stopped with its last.

It listens to what publishers, workers and operators announce (`outbox_core.wakeup`) and wakes the sockets, which send
ticks. It carries no data: what a tick makes a page ask for over HTTP is rendered under that viewer's permissions. A
lost tick heals with the next one, and after a lost connection the watch wakes everyone once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field

from outbox_core.conf import settings
from outbox_core.wakeup import Watch

INTERVAL = 0.25  # seconds: a socket sends at most four ticks a second


@dataclass(eq=False, slots=True)
class Listener:
    """A socket's ear. `changed_at` is when the first change came that it has not taken yet (`time.monotonic`)."""

    loop: asyncio.AbstractEventLoop
    event: asyncio.Event = field(default_factory=asyncio.Event)
    changed_at: float = 0.0
    last: float = float("-inf")

    def notice(self, at: float) -> None:
        """Called in the loop's thread: there is something new since `at`."""
        if not self.event.is_set():
            self.changed_at = at
            self.event.set()

    async def change(self) -> float:
        """Wait for a change, and until `INTERVAL` after the one before; returns its age in seconds."""
        await self.event.wait()
        await asyncio.sleep(self.last + INTERVAL - time.monotonic())
        self.last = time.monotonic()
        self.event.clear()
        return self.last - self.changed_at


class Feed:
    """The listeners of this process, and the watches on every database that holds an outbox."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()
        self._watches: list[Watch] = []
        self._ended = threading.Event()
        self.number = 0  # of changes that were heard of

    def __len__(self) -> int:
        return len(self._listeners)

    def join(self) -> Listener:
        """A new listener on the running event loop; the first one starts the watches."""
        listener = Listener(asyncio.get_running_loop())
        with self._lock:
            self._listeners.add(listener)
            if not self._watches:
                self._start()
        return listener

    def leave(self, listener: Listener) -> None:
        """Forget a listener; the last one stops the watches."""
        with self._lock:
            self._listeners.discard(listener)
            if not self._listeners:
                self._stop()

    def wake(self, what: str = "") -> None:
        """Something changed: tell every listener. Called in the watches' threads."""
        now = time.monotonic()
        with self._lock:
            self.number += 1
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener.loop.call_soon_threadsafe(listener.notice, now)
            except RuntimeError:  # its loop was closed
                self.leave(listener)

    def _start(self) -> None:
        self._ended = threading.Event()
        self._watches = [Watch(alias, self.wake) for alias in settings.DATABASES]
        for watch in self._watches:
            watch.start()
        threading.Thread(
            target=self._poll, args=(self._ended, self._watches), name="feed-poll", daemon=True
        ).start()

    def _stop(self) -> None:
        self._ended.set()
        for watch in self._watches:
            watch.stop()
        self._watches = []

    def _poll(self, ended: threading.Event, watches: list[Watch]) -> None:
        """Where nothing is announced (WAKEUP is `poll`, the connection is lost), wake everyone each POLL_INTERVAL."""
        while not ended.wait(max(INTERVAL, settings.POLL_INTERVAL)):
            if any(watch.mode == "poll" for watch in watches):
                self.wake()


feed = Feed()
