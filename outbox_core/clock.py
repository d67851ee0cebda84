"""Whose time it is.

Leases and due times are compared by the database's clock, so that hosts with wrong clocks agree; on
PostgreSQL by `clock_timestamp()`, since `now()` stands still inside a transaction. SQLite has no server:
its clock is the host's. What a process measures on its own, it measures by a clock that runs through
suspension and cannot be set (`lease_clock`).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from django.db import connections
from django.db.models import DateTimeField, Func


class ClockTimestamp(Func):
    """The database's clock at this moment, as a default or an expression."""

    template = "CLOCK_TIMESTAMP()"
    output_field = DateTimeField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(
            compiler,
            connection,
            template="(STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW') || '000')",
            **context,
        )


def database_now(using: str = "default") -> datetime:
    """The database's clock, aware, in UTC. One round trip on PostgreSQL, none on SQLite."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
        return now


def lease_clock() -> float:
    """Seconds on a clock that no one sets and that goes on while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
