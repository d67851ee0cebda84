"""What the database does for a hot statement: the indexes it uses and the pages it touches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from outbox_core.models import Parked, Pending
from outbox_core.sql import Dialect, exclusive

PENDING, PARKED = Pending._meta.db_table, Parked._meta.db_table


@dataclass(frozen=True, slots=True)
class Plan:
    """One statement as it was planned. `buffers`: pages that were touched (0 on SQLite, which does not tell)."""

    statement: str
    indexes: frozenset[str]
    scanned: frozenset[str]  # tables that were read whole
    buffers: int


def plans(act: Callable[[Dialect], Any]) -> list[Plan]:
    """Run `act` as a turn would, and plan each statement that reads or changes rows. Leaves nothing changed."""
    with exclusive("default", hot=True) as db:
        recorder = Recorder()
        with transaction.atomic():  # so that each statement is planned for the rows that it met
            with connection.execute_wrapper(recorder):
                act(db)
            transaction.set_rollback(True)
        found = [_explain(statement, parameters) for statement, parameters in recorder.statements]
        transaction.set_rollback(True)
    return found


class Recorder:
    """Remembers the statements that read or change rows."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, Any]] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        verb, words = sql.split(None, 1)[0], sql.split()
        if verb in ("UPDATE", "DELETE", "WITH") or (verb == "SELECT" and "FROM" in words):
            self.statements.append((sql, params))
        return execute(sql, params, many, context)


def _explain(statement: str, parameters: Any) -> Plan:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with _undone():
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
                (said,) = cursor.fetchone()
            top = (said if isinstance(said, list) else json.loads(said))[0]["Plan"]
            nodes = list(_nodes(top))
            return Plan(
                statement,
                frozenset(n["Index Name"] for n in nodes if "Index Name" in n),
                frozenset(n["Relation Name"] for n in nodes if n["Node Type"] == "Seq Scan"),
                top["Shared Hit Blocks"] + top["Shared Read Blocks"],
            )
        cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        lines = [detail for *_, detail in cursor.fetchall()]
    return Plan(
        statement,
        frozenset(line.partition(" INDEX ")[2].split(" ")[0] for line in lines if " INDEX " in line),
        frozenset(line.split(" ")[1] for line in lines if line.startswith("SCAN") and " INDEX " not in line),
        0,
    )


@contextmanager
def _undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def fill(
    count: int, *, key: str = "''", available: str = "now", stranded: bool = False, start: int = 1
) -> None:
    """Pending rows `start` and on. `key` is SQL of `n`, the number of the row; `available` is `now`, `later` or `null`.

    The rows of one key are in one partition; which one does not matter here.
    """
    postgresql = connection.vendor == "postgresql"
    numbers = (
        f"generate_series({start}, {start + count - 1}) AS s(n)"
        if postgresql
        else f"(WITH RECURSIVE c(n) AS (SELECT {start} UNION ALL SELECT n + 1 FROM c WHERE n < {start + count - 1}) "
        "SELECT n FROM c) AS s"
    )
    moment = {
        "now": "clock_timestamp() - interval '1 minute'" if postgresql else "datetime('now', '-1 minute')",
        "later": "clock_timestamp() + interval '1 hour'" if postgresql else "datetime('now', '+1 hour')",
        "null": "NULL",
    }[available]
    # A number of the key's own, or the row's: SQLite has no hash function.
    number = f"COALESCE(CAST(NULLIF(substr({key}, 2), '') AS integer), n)"
    true, false = ("true", "false") if postgresql else ("1", "0")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {PENDING} (message, partition, key, position, type, destination, available_at, scheduled, "
            "direct, stranded, late, attempts, failures, cause, error_class, last_error) "
            f"SELECT n, {number} % 64, {key}, n, 'shop.sold', 'events', {moment}, {false}, {false}, "
            f"{true if stranded else false}, {false}, 0, 0, 'first', '', '' FROM {numbers}"
        )


def analyse() -> None:
    """Statistics as they are after the fill."""
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM ANALYZE {PENDING}" if connection.vendor == "postgresql" else "ANALYZE")


@contextmanager
def statistics(state: str, table: str = PENDING) -> Iterator[Callable[[], None]]:
    """Statistics of a table: `fresh`, or `empty` (taken before the rows came, and never again). Gives what to call
    after the fill."""
    if connection.vendor != "postgresql":
        yield analyse if state == "fresh" else (lambda: None)
        return
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        cursor.execute(f"VACUUM ANALYZE {table}")
        try:
            yield analyse if state == "fresh" else (lambda: None)
        finally:
            cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")
