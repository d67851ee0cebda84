"""Counts per minute, written by the workers in the transaction that makes them true.

A row is one (minute, worker, destination, kind, bucket), so no two processes ever wait for one row.
Latencies are kept as a histogram of log2 classes: bucket b counts what took up to 2^b milliseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from outbox_core.models import Tally
from outbox_core.sql import Dialect

NO_LATENCY = -1
LAST_BUCKET = 26  # 2^26 ms are 18 hours


class Count(NamedTuple):
    """What is counted. `destination` is the consumer's name for what happens on the receiving side."""

    destination: str
    kind: str
    bucket: int = NO_LATENCY


Counts = Counter[Count]


def bucket(latency: float) -> int:
    """The log2 class of a latency in seconds."""
    milliseconds = max(1.0, latency * 1000)
    return min(LAST_BUCKET, math.ceil(math.log2(milliseconds)))


def quantile(histogram: Mapping[int, int], q: float) -> float | None:
    """The upper bound, in seconds, of the class that holds the q-quantile (0 < q <= 1); None without data."""
    total = sum(n for b, n in histogram.items() if b != NO_LATENCY)
    seen = 0
    for b in sorted(histogram):
        if b == NO_LATENCY:
            continue
        seen += histogram[b]
        if seen >= q * total:
            return float(2**b) / 1000
    return None


def add(using: str, worker: str, counts: Mapping[Count, int], now: datetime) -> None:
    """Add the counts to this minute's rows, in one statement of the caller's transaction."""
    rows = [(c, n) for c, n in sorted(counts.items()) if n]
    if not rows:
        return
    db = Dialect(using)
    minute = db.moment(now.replace(second=0, microsecond=0))
    table = Tally._meta.db_table
    values = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(rows))
    db.execute(
        f"INSERT INTO {table} (minute, worker, destination, kind, bucket, count) VALUES {values} "
        "ON CONFLICT (minute, worker, destination, kind, bucket) "
        f"DO UPDATE SET count = {table}.count + excluded.count",
        [x for c, n in rows for x in (minute, worker, c.destination, c.kind, c.bucket, n)],
    )
