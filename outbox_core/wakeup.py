"""How a worker learns at once that there is something to do, and a web process that something changed.

PostgreSQL: NOTIFY after the commit, LISTEN in a thread. SQLite: `PRAGMA data_version` changes with every commit
of another connection. A lost wake-up costs one poll interval and nothing else: it never carries data that matters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import connections, transaction

from outbox_core.conf import settings

log = logging.getLogger("outbox.wakeup")

CHANNEL = "outbox_wakeup"
PENDING = "pending"  # payload: publish() committed something
CHANGED = "changed"  # payload: a worker or an operator changed something

COALESCE = 0.05  # seconds: at most one NOTIFY in this time per process and alias
KEEPALIVE = 30.0  # seconds between two `SELECT 1` on the LISTEN session
DATA_VERSION_POLL = 0.02  # seconds between two looks at SQLite's data_version

_last: dict[tuple[str, str], float] = {}


def announce(using: str, what: str = PENDING) -> None:
    """Wake the listeners once the caller's transaction has committed (at once if there is none)."""
    if connections[using].vendor == "postgresql":
        transaction.on_commit(lambda: _notify(using, what), using=using, robust=True)


def _notify(using: str, what: str) -> None:
    now = time.monotonic()
    if now - _last.get((using, what), -COALESCE) < COALESCE:
        return
    _last[using, what] = now
    _send(using, what)


def _send(using: str, what: str) -> None:
    try:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, what])
    except Exception:  # the message is committed: nothing may tell its producer otherwise
        log.exception("Could not notify; the dispatcher polls", extra={"action": "notify_failed"})


class Announcer:
    """Tells web processes that a worker changed something, at most 4 times a second; the last change for certain."""

    EVERY = 0.25  # seconds

    def __init__(self, using: str) -> None:
        self.using = using
        self._noted = False
        self._told = -1e9

    def note(self) -> None:
        """Something changed, and was committed."""
        self._noted = True

    def due(self) -> float | None:
        """The time (`time.monotonic()`) by which `flush` should be called; None if there is nothing to tell."""
        return self._told + self.EVERY if self._noted else None

    def flush(self, *, now: bool = False) -> None:
        """Tell it if it is due (or `now`). Outside a transaction."""
        due = self.due()
        if due is not None and (now or time.monotonic() >= due):
            self._noted, self._told = False, time.monotonic()
            if connections[self.using].vendor == "postgresql":
                _send(self.using, CHANGED)


class Watch:
    """A thread that calls `on_wake(what)` whenever something was announced on the database `using`.

    `on_wake` runs in that thread and must be quick. After a lost connection it is called once with
    PENDING, since announcements may have been missed. `mode` is `notify` or `poll`, for people.
    """

    def __init__(self, using: str, on_wake: Callable[[str], None]) -> None:
        self.using, self.on_wake = using, on_wake
        self.mode = "poll"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wakeup-{using}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        if settings.WAKEUP == "poll":
            return
        watch = self._listen if connections[self.using].vendor == "postgresql" else self._watch_file
        while not self._stop.is_set():
            try:
                watch()
            except Exception as error:
                log.warning("No wake-up, polling: %s", error, extra={"action": "wakeup_lost"})
            self.mode = "poll"
            self._stop.wait(1.0)
        connections.close_all()

    def _listen(self) -> None:
        with self._connect() as session:
            session.execute(f"LISTEN {CHANNEL}")
            self.mode = "notify"
            self.on_wake(PENDING)
            spoken = time.monotonic()
            while not self._stop.is_set():
                for notice in session.notifies(timeout=1.0):
                    self.on_wake(notice.payload)
                if time.monotonic() - spoken > KEEPALIVE:
                    session.execute("SELECT 1")  # a dead session raises here
                    spoken = time.monotonic()

    def _connect(self) -> psycopg.Connection:
        keepalive: dict[str, Any] = {
            "keepalives": 1,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        }
        if settings.LISTEN_URL:
            return psycopg.connect(settings.LISTEN_URL, autocommit=True, **keepalive)
        parameters = connections[self.using].get_connection_params()
        known = {
            k: v for k, v in parameters.items() if k not in {"context", "cursor_factory", "prepare_threshold"}
        }
        return psycopg.connect(**{**known, **keepalive, "autocommit": True})

    def _watch_file(self) -> None:
        self.mode = "notify"
        self.on_wake(PENDING)
        seen = None
        while not self._stop.wait(DATA_VERSION_POLL):
            with connections[self.using].cursor() as cursor:
                version = cursor.execute("PRAGMA data_version").fetchone()[0]
            if version != seen and seen is not None:
                self.on_wake(CHANGED)
            seen = version
