"""The sign of life of a worker: one row of `Worker`, renewed every HEARTBEAT seconds by a thread of its own.

It is for people and nothing else: no recovery depends on it, and when it fails the worker goes on. A thread, since a
handler may run for minutes; its own connection, so that it sees no transaction of the worker.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from django.db import connections

from outbox_core.clock import ClockTimestamp, database_now
from outbox_core.conf import settings
from outbox_core.models import Worker
from outbox_core.shutdown import Stop
from outbox_core.transports.base import BrokerState

log = logging.getLogger("outbox.heartbeat")

SILENT = timedelta(minutes=10)  # a row without a sign of life for so long is removed by whoever beats
PRUNE_EVERY = 60.0  # seconds between two looks for silent rows
LEAVE = 2.0  # seconds that a clean exit waits for its row to be removed


def alive_for() -> timedelta:
    """How long after its last sign of life a worker counts as alive: what it said of itself holds no longer."""
    return timedelta(seconds=settings.LEASE + settings.HEARTBEAT)


def worker_name() -> str:
    """A name for a worker that was given none: host and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"[:255]


def product_version() -> str:
    """The version of the installed product; `dev` from a checkout."""
    try:
        return version("outboard")[:32]
    except PackageNotFoundError:
        return "dev"


class Heartbeat:
    """`with Heartbeat(using, kind, name) as beat:` shows a worker as alive until the block ends, and then removes it.

    `kind` is `dispatcher`, `consumer` or `traffic`. `stop`, if given, is set when an operator asks the worker to leave.
    What the attributes `broker`, `wakeup`, `partitions` and `problems` (name -> sentence) hold is shown at the next
    beat; a change of the broker's state, at once. Nothing here waits for the database in the worker's own thread,
    and nothing raises for it.
    """

    wakeup = ""
    partitions = 0

    def __init__(self, using: str, kind: str, name: str = "", *, stop: Stop | None = None) -> None:
        self.using, self.kind, self.name = using, kind, name or worker_name()
        self.problems: Mapping[str, str] = {}
        self._broker = BrokerState("")
        self._stop = stop
        self._count = 0
        self._lock = threading.Lock()
        self._leave = threading.Event()
        self._nudge = threading.Event()
        self._silent = False  # the last write failed; it is logged once
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{self.kind}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._leave.set()
        self._nudge.set()
        self._thread.join(LEAVE)

    def count(self, messages: int = 1) -> None:
        """Count messages that were done; their rate is shown."""
        with self._lock:
            self._count += messages

    @property
    def broker(self) -> BrokerState:
        return self._broker

    @broker.setter
    def broker(self, state: BrokerState) -> None:
        before, self._broker = self._broker, state
        if before.name != state.name:
            self._nudge.set()

    def _run(self) -> None:
        before, pruned = time.monotonic(), 0.0
        first = True
        while not self._leave.is_set():
            now = time.monotonic()
            self._try(self._beat, first, now - before)
            first, before = first and self._silent, now
            if now - pruned > PRUNE_EVERY or not pruned:
                self._try(self._prune)
                pruned = now
            self._nudge.wait(settings.HEARTBEAT)
            self._nudge.clear()
        self._try(self._remove)
        connections.close_all()

    def _try(self, write: Any, *arguments: Any) -> None:
        try:
            write(*arguments)
            self._silent = False
        except Exception as error:
            if not self._silent:
                log.warning(
                    "The sign of life of %s %s could not be written: %s", self.kind, self.name, error,
                    extra={"action": "heartbeat_failed"},
                )  # fmt: skip
            self._silent = True
            connections[self.using].close()

    def _beat(self, first: bool, elapsed: float) -> None:
        with self._lock:
            count, self._count = self._count, 0
        broker = self._broker
        row = Worker(
            kind=self.kind, name=self.name, host=socket.gethostname()[:255], pid=os.getpid(),
            version=product_version(), started_at=ClockTimestamp(), heartbeat=ClockTimestamp(),
            partitions=self.partitions, rate=count / elapsed if elapsed > 0 and not first else 0,
            broker=broker.name, broker_detail=broker.detail, broker_since=broker.since,
            wakeup=self.wakeup, problems=dict(self.problems),
        )  # fmt: skip
        shown = [
            "host", "pid", "version", "heartbeat", "partitions", "rate", "broker", "broker_detail", "broker_since",
            "wakeup", "problems",
        ]  # fmt: skip
        if first:  # the row of a namesake that died says nothing about this process
            shown += ["started_at", "drain"]
        workers = Worker.objects.using(self.using)
        workers.bulk_create([row], update_conflicts=True, unique_fields=["kind", "name"], update_fields=shown)
        if self._stop is not None and workers.filter(kind=self.kind, name=self.name, drain=True).exists():
            log.info("%s %s was asked to leave", self.kind, self.name, extra={"action": "drain"})
            self._stop.set()

    def _prune(self) -> None:
        before = database_now(self.using) - SILENT
        Worker.objects.using(self.using).filter(heartbeat__lt=before).delete()

    def _remove(self) -> None:
        own = Worker.objects.using(self.using).filter(kind=self.kind, name=self.name)
        own.filter(host=socket.gethostname()[:255], pid=os.getpid()).delete()
