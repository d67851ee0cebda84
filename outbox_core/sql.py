"""Where the two databases differ in the hot statements: lists as parameters, row locks, the clock.

A list is one parameter on both (an array, or JSON), so a statement's text never depends on how long the list is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from django.db import connections, transaction

from outbox_core.conf import settings

LONGEST_REST = 0.25  # seconds to leave SQLite's write lock to others, at most


class _Cursor(psycopg.Cursor[Any]):
    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.format = psycopg.pq.Format.BINARY


_PLAIN = frozenset({"smallint", "integer", "bigint", "boolean"})


def array(kind: str, values: Iterable[Any]) -> Any:
    """A list as a parameter of type `kind[]`: of whole numbers and truths (none of them NULL) as text, which is ten
    times as fast as psycopg's way."""
    return "{" + ",".join(map(str, values)) + "}" if kind in _PLAIN else list(values)


class Dialect:
    """The SQL of one database alias."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.connection = connections[using]
        self.postgresql = self.connection.vendor == "postgresql"
        self.true, self.false = ("true", "false") if self.postgresql else ("1", "0")

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; its rows, or none where it returns none."""
        with self._cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def count(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement; how many rows it changed."""
        with self._cursor() as cursor:
            cursor.execute(statement, parameters)
            return int(cursor.rowcount)

    def _cursor(self) -> Any:
        """Django's cursor, which on PostgreSQL binds on the server and takes rows in binary: with Django's own, a
        dispatcher spends a third of its time on writing literals and parsing times in Python."""
        cursor = self.connection.cursor()
        if self.postgresql:
            cursor.cursor = _Cursor(cursor.cursor.connection)
        return cursor

    def among(self, column: str, ids: Iterable[int]) -> tuple[str, Any]:
        """A condition `column is one of ids`, and its one parameter."""
        if self.postgresql:
            return f"{column} = ANY(%s::bigint[])", array("bigint", ids)
        return f"{column} IN (SELECT value FROM json_each(%s))", json.dumps(list(ids))

    def among_texts(self, column: str, values: Iterable[str]) -> tuple[str, Any]:
        """The same for texts."""
        if self.postgresql:
            return f"{column} = ANY(%s::text[])", list(values)
        return f"{column} IN (SELECT value FROM json_each(%s))", json.dumps(list(values))

    def table(
        self, name: str, columns: dict[str, str], rows: Sequence[Sequence[Any]]
    ) -> tuple[str, list[Any]]:
        """A FROM item `name` with these columns (name -> PostgreSQL type) and rows, and its parameters."""
        if self.postgresql:
            arrays = ", ".join(f"%s::{kind}[]" for kind in columns.values())
            lists = zip(*rows, strict=True)
            return f"unnest({arrays}) AS {name}({', '.join(columns)})", [
                array(kind, list_) for kind, list_ in zip(columns.values(), lists, strict=True)
            ]
        fields = ", ".join(f"json_extract(value, '$[{i}]') AS {column}" for i, column in enumerate(columns))
        return f"(SELECT {fields} FROM json_each(%s)) AS {name}", [json.dumps([list(row) for row in rows])]

    def index(self, name: str) -> str:
        """The index that a FROM item is read by: SQLite is told, PostgreSQL held to the indexes by `exclusive`."""
        return "" if self.postgresql else f"INDEXED BY {name}"

    def rest(self, began: float) -> None:
        """After a transaction that wrote since `began` (`time.monotonic()`): SQLite's waiting for the write lock is not
        fair, so leave it to others for as long as it was held."""
        if not self.postgresql:
            time.sleep(min(LONGEST_REST, time.monotonic() - began))

    def lock(self, clause: str) -> str:
        """A locking clause; SQLite's write transaction is the lock there."""
        return clause if self.postgresql else ""

    def now(self) -> datetime:
        """The database's clock."""
        return self.execute("SELECT clock_timestamp()")[0][0] if self.postgresql else datetime.now(UTC)

    @property
    def later(self) -> str:
        """The SQL of "the database's clock, so many seconds on", with one parameter (see `later_parameter`)."""
        return "clock_timestamp() + %s * interval '1 second'" if self.postgresql else "%s"

    def later_parameter(self) -> Callable[[float], Any]:
        """What turns seconds into the parameter of `later`."""
        if self.postgresql:
            return float
        now = self.now()
        return lambda seconds: self.to_database(now + timedelta(seconds=seconds))

    def to_database(self, moment: datetime) -> Any:
        """A moment as a statement's parameter."""
        return self.connection.ops.adapt_datetimefield_value(moment)

    def moment(self, moment: datetime) -> Any:
        """A moment as a parameter of a statement of our own: psycopg wants it aware, SQLite as Django writes it."""
        return moment if self.postgresql else self.to_database(moment)

    def from_database(self, moment: Any) -> Any:
        """A moment as a statement returned it, aware."""
        if isinstance(moment, str):
            moment = datetime.fromisoformat(moment)
        if isinstance(moment, datetime) and moment.tzinfo is None:  # SQLite keeps UTC without saying so
            return moment.replace(tzinfo=UTC)
        return moment


_LIMITS = (
    "SELECT set_config('idle_in_transaction_session_timeout', %s, true), set_config('lock_timeout', %s, true)"
)
# A planner that believes a table to be empty sees no harm in reading a partition whole and sorting it.
_TO_THE_INDEXES = "".join(
    f", set_config('{name}', 'off', true)"
    for name in ("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit")
)


@contextmanager
def exclusive(using: str, *, hot: bool = False) -> Iterator[Dialect]:
    """A transaction that takes locks others wait for, so it may not sit on them: a process that is stopped
    inside it loses its session after LEASE / 2 and the locks with it, and one that waits so long for another lock
    gives up (OperationalError). `hot`: the planner is held to the indexes and to their order, since queue tables are
    analysed while empty and then fill."""
    dialect = Dialect(using)
    with transaction.atomic(using=using):
        if dialect.postgresql:
            idle = f"{int(settings.LEASE * 500)}ms"
            dialect.execute(_LIMITS + (_TO_THE_INDEXES if hot else ""), [idle, idle])
        yield dialect


@contextmanager
def glance(using: str) -> Iterator[Dialect]:
    """For a look that changes nothing, by the indexes alone. On SQLite outside a transaction: one would take the only
    write lock."""
    dialect = Dialect(using)
    if not dialect.postgresql:
        yield dialect
        return
    with exclusive(using, hot=True):
        yield dialect
