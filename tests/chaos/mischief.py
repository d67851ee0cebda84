"""What the chaos tests do to processes, and to what a dead process leaves behind."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta

from django.db import connection

from outbox_core.clock import database_now
from outbox_core.models import LoopbackDelivery
from tests.processes import Process


def freeze(process: Process) -> None:
    """SIGSTOP outside a transaction. On SQLite a process that is stopped inside one keeps the only write lock, and no
    one can take over from it before it goes on: there is no server that would end its session."""
    while True:
        process.stop()
        if connection.vendor != "sqlite":
            return
        with closing(
            sqlite3.connect(connection.settings_dict["NAME"], timeout=0.3, isolation_level=None)
        ) as probe:
            try:
                probe.execute("BEGIN IMMEDIATE")
                probe.execute("ROLLBACK")
                return
            except sqlite3.OperationalError:
                process.cont()


def free_loopback_deliveries() -> None:
    """What a killed consumer of the embedded broker held is hidden until its visibility time-out: let that pass."""
    LoopbackDelivery.objects.update(visible_at=database_now() - timedelta(seconds=1))
