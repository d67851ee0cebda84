"""What a turn's read costs with a million pending, against a thousand: in five situations."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from outbox_core.clock import database_now
from outbox_core.outbox.circuits import Circuits
from outbox_core.outbox.reading import Reading
from outbox_core.outbox.turn import Memory, Turn
from outbox_core.sql import exclusive
from tests.benchmarks.conftest import Board
from tests.integration.plans import PARKED, PENDING, fill

pytestmark = pytest.mark.django_db(transaction=True)

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
FEW = 1000
TO_GO = 500  # keyless rows that may go at once, beside what waits

Group = dict[str, Any]
HELD = {"key": "'k' || (n % 100)", "available": "null"}
SITUATIONS: dict[str, list[Group]] = {
    "no keys": [{"share": 1}],
    "10,000 keys": [{"share": 1, "key": "'k' || (n % 10000)"}],
    "one hot key": [{"share": 1, "key": "'k7'", "available": "null"}, {"count": TO_GO}],
    "behind 100 dead keys": [{"share": 1, **HELD}, {"count": TO_GO}],
    "200,000 in back-off": [{"share": 0.2, "available": "later"}, {"share": 0.8}],
}


@contextmanager
def schema(name: str) -> Iterator[None]:
    """The queue's tables are those of a schema of their own."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path TO {name}, public")
        try:
            yield
        finally:
            cursor.execute("SET search_path TO public")


def build(name: str, rows: int, groups: list[Group]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        cursor.execute(f"CREATE SCHEMA {name}")
        for table in (PENDING, PARKED):
            cursor.execute(f"CREATE TABLE {name}.{table} (LIKE public.{table} INCLUDING ALL)")
    with schema(name), connection.cursor() as cursor:
        start = 1
        for group in groups:
            count = group.get("count") or int(rows * group["share"])
            fill(count, start=start, **{k: v for k, v in group.items() if k not in ("count", "share")})
            start += count
        if groups[0].get("key") == HELD["key"]:
            cursor.execute(
                f"INSERT INTO {PARKED} (message, state, partition, key, position, type, destination, holds, late, "
                "attempts, failures, error_class, error, fingerprint) SELECT -n, 'dead', n % 64, 'k' || n, 0, 't', "
                "'events', true, false, 1, 1, '', '', '' FROM generate_series(0, 99) AS s(n)"
            )
        cursor.execute(f"VACUUM ANALYZE {PENDING}")


def read(name: str) -> float:
    """Milliseconds of the reading part of a turn, from the start of every partition. Leaves nothing changed."""
    with schema(name), exclusive("default", hot=True) as db:
        turn = Turn(Memory(1, mine=set(range(64)), readable=set(range(64))), Circuits(random.Random(1)))
        reading, now = Reading(500), database_now()
        began = time.perf_counter()
        turn._read(db, reading, now)
        took = (time.perf_counter() - began) * 1000
        assert sum(len(lane) for lane in turn.lanes) >= min(TO_GO, 100)
        transaction.set_rollback(True)
    return took


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_read_does_not_grow_with_the_backlog(situation: str, pair: str, board: Board) -> None:
    if pair != "real":
        board.note(f"a turn's read, {situation}: it needs PostgreSQL (PAIR=real)")
        pytest.skip("needs PostgreSQL")
    build("bench_big", ROWS, SITUATIONS[situation])
    build("bench_small", FEW, SITUATIONS[situation])
    try:
        for name in ("bench_big", "bench_small"):
            read(name)  # warm
        board.compare(
            f"a turn's read, {ROWS:,} / {FEW:,} pending: {situation}",
            lambda: min(read("bench_big") for _ in range(3)), lambda: min(read("bench_small") for _ in range(3)),
            "ms", wanted="<= 10",
        )  # fmt: skip
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA bench_big CASCADE")
            cursor.execute("DROP SCHEMA bench_small CASCADE")
