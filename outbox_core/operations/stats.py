"""The numbers: exact ones for the command line, capped ones for pages, sums and series from the tallies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q, Sum

from outbox_core import tallies
from outbox_core.clock import database_now
from outbox_core.heartbeat import alive_for
from outbox_core.models import (
    Dispatch,
    Duplicate,
    Handling,
    Message,
    Operation,
    Parked,
    Pending,
    Tally,
    Worker,
)
from outbox_core.operations import undone
from outbox_core.operations.counting import CAP, capped
from outbox_core.sql import Dialect

ASIDE_SCAN = 5_000  # rows set aside that a page looks at, at most
SCAN = 100_000  # rows of the queue that a page looks at, at most


def status(using: str = "default") -> dict[str, Any]:
    """What `outbox_status --json` prints. Exact: about 80 ms per million pending.

    `pending` has not failed yet (`scheduled` ones are among them), `retrying` has. `dispatched` and `duplicates`
    are all ever counted; `consumers_retrying` and `consumers_dead` were sent, and a consumer has not done them.
    `oldest_pending_seconds` counts from the due time; 0 if nothing is due.
    """
    now = database_now(using)
    queue = Pending.objects.using(using).aggregate(
        pending=Count("pk", filter=Q(failures=0)),
        retrying=Count("pk", filter=Q(failures__gt=0)),
        scheduled=Count("pk", filter=Q(scheduled=True)),
        due=Min("available_at", filter=Q(available_at__lte=now)),
    )
    parked = dict(Parked.objects.using(using).order_by().values_list("state").annotate(n=Count("pk")))
    handling = dict(Handling.objects.using(using).order_by().values_list("state").annotate(n=Count("pk")))
    ever = sums(using, ("dispatched", "duplicate"))
    return {
        "pending": queue["pending"],
        "retrying": queue["retrying"],
        **{state: parked.get(state, 0) for state in ("dead", "marked", "discarded")},
        "scheduled": queue["scheduled"],
        "dispatched": ever["dispatched"],
        "duplicates": ever["duplicate"] + _producer_duplicates(using),
        "consumers_retrying": sum(handling.get(s, 0) for s in undone.TRIED),
        "consumers_dead": sum(handling.get(s, 0) for s in undone.GIVEN_UP),
        "oldest_pending_seconds": _age(now, queue["due"], oldest_aside(using)),
        "workers": workers(using, now),
    }


def oldest_pending(using: str = "default") -> float:
    """Seconds that the oldest due message has waited; 0 if none is due. From the indexes, whatever the backlog."""
    return max(waits(using))


def waits(using: str = "default") -> tuple[float, float]:
    """Seconds that the oldest message has waited that may go, and that the oldest has that waits behind another."""
    now = database_now(using)
    table = Pending._meta.db_table
    db = Dialect(using)
    # Index: ready, one probe per partition.
    partitions = " UNION ALL ".join(f"SELECT {n} AS number" for n in range(64))
    ((due,),) = db.execute(
        f"SELECT MIN(due) FROM (SELECT (SELECT p.available_at FROM {table} p WHERE p.partition = n.number "
        "AND p.available_at IS NOT NULL ORDER BY p.available_at, p.position LIMIT 1) AS due "
        f"FROM ({partitions}) AS n) AS oldest"
    )
    return _age(now, db.from_database(due)), _age(now, oldest_aside(using, ASIDE_SCAN))


def oldest_aside(using: str, most: int | None = None) -> datetime | None:
    """Since when the oldest row set aside has waited (behind another of its key); None if there is none.

    Such a row has no due time. A person's act set it at that act; a delayed message fell due when it drew its place,
    which is before whatever drew the next one; any other was due when it was committed. `most`: look at so many rows
    only, those of the oldest messages.
    """
    db, table = Dialect(using), Pending._meta.db_table
    if not Pending.objects.using(using).filter(available_at__isnull=True).exists():  # index: aside
        return None
    within = "" if most is None else f"ORDER BY message LIMIT {most}"
    ((first, moved, act),) = db.execute(
        "SELECT MIN(CASE WHEN operation IS NULL AND position = message THEN message END), "
        "MIN(CASE WHEN operation IS NULL AND position <> message THEN position END), MIN(operation) "
        f"FROM (SELECT message, position, operation FROM {table} WHERE available_at IS NULL {within}) AS aside"
    )
    messages = Message.objects.using(using).order_by("pk").values_list("created_at", flat=True)
    acts = Operation.objects.using(using).filter(pk=act).values_list("at", flat=True)
    candidates = [
        None if first is None else messages.filter(pk=first).first(),
        None if moved is None else messages.filter(pk__gt=moved).first(),
        None if act is None else acts.first(),
    ]
    return min((c for c in candidates if c is not None), default=None)


def _age(now: datetime, *since: datetime | None) -> float:
    known = [s for s in since if s is not None]
    return max(0.0, round((now - min(known)).total_seconds(), 3)) if known else 0.0


def _producer_duplicates(using: str) -> int:
    # publish() writes no tally: a hot row would serialise the business. Index: duplicate_consumer.
    return Duplicate.objects.using(using).filter(consumer="").count()


def workers(using: str = "default", now: datetime | None = None) -> list[dict[str, Any]]:
    """Every worker that was heard of, with the age of its heartbeat by the database's clock; the silent ones last, and
    without what they said of themselves, which is no longer true."""
    now = now or database_now(using)
    rows = Worker.objects.using(using).order_by("kind", "name")
    return sorted(
        (worker(w, (now - w.heartbeat).total_seconds()) for w in rows), key=lambda w: bool(w["silent"])
    )


def worker(w: Worker, age: float) -> dict[str, Any]:
    """One worker, heard of `age` seconds ago. What a silent one said of itself last is no longer true, and not told."""
    silent = age > alive_for().total_seconds()
    said = {"partitions": w.partitions, "rate": round(w.rate, 1), "broker": w.broker}
    return {
        "kind": w.kind, "name": w.name, "host": w.host, "pid": w.pid, "version": w.version,
        "heartbeat_age_seconds": max(0.0, round(age, 3)), "silent": silent,
        **({"partitions": 0, "rate": 0.0, "broker": ""} if silent else said), "wakeup": w.wakeup,
    }  # fmt: skip


def counts(using: str = "default", cap: int = CAP) -> dict[str, int]:
    """How many there are per state, and in `all`, counted up to `cap`: cap + 1 stands for more.

    `dispatched` and `duplicates` count rows of Dispatch and of the ledger: a message that was sent twice counts twice.

    A backlog of millions costs a page no more than a look at `SCAN` rows of the queue.
    """
    found = {
        **_queued(using, cap),
        "dispatched": capped(Dispatch.objects.using(using).order_by(), cap),
        "duplicates": capped(Duplicate.objects.using(using).order_by(), cap),
        "all": capped(Message.objects.using(using).order_by(), cap),
    }
    for state in ("dead", "marked", "discarded"):
        found[state] = capped(Parked.objects.using(using).filter(state=state).order_by(), cap)
    return found


def _queued(using: str, cap: int) -> dict[str, int]:
    (found,) = Dialect(using).execute(
        "SELECT COUNT(*) FILTER (WHERE failures = 0), COUNT(*) FILTER (WHERE failures > 0), "
        "COUNT(*) FILTER (WHERE scheduled) "
        f"FROM (SELECT failures, scheduled FROM {Pending._meta.db_table} LIMIT %s) AS looked_at",
        [SCAN],
    )
    return {
        name: min(n, cap + 1) for name, n in zip(("pending", "retrying", "scheduled"), found, strict=True)
    }


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a series: its start, and the count per kind."""

    at: datetime
    counts: Mapping[str, int] = field(default_factory=dict)


def series(
    using: str, kinds: Iterable[str], since: datetime, until: datetime, step: timedelta = timedelta(minutes=1)
) -> list[Point]:
    """Counts per step from the tallies, oldest first, with empty steps filled in. `step` is whole minutes."""
    minutes = max(1, round(step.total_seconds() / 60))
    width = minutes * 60
    start = int(since.timestamp()) // width * width
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    rows = _tallies(using, kinds, datetime.fromtimestamp(start, UTC), until)
    for minute, kind, n in rows.values_list("minute", "kind").annotate(n=Sum("count")):
        slot = found[int(minute.timestamp()) // width * width]
        slot[kind] = slot.get(kind, 0) + n
    return [
        Point(datetime.fromtimestamp(at, UTC), found.get(at, {}))
        for at in range(start, int(until.timestamp()) + 1, width)
    ]


def sums(
    using: str, kinds: Iterable[str], since: datetime | None = None, until: datetime | None = None
) -> dict[str, int]:  # fmt: skip
    """The sum per kind, of all time or of a time range."""
    kinds = tuple(kinds)
    found = dict(_tallies(using, kinds, since, until).values_list("kind").annotate(n=Sum("count")))
    return {kind: found.get(kind, 0) for kind in kinds}


def by_destination(
    using: str, kinds: Iterable[str], since: datetime, until: datetime | None = None
) -> dict[str, dict[str, int]]:  # fmt: skip
    """The sum per destination (or consumer) and kind."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    rows = _tallies(using, kinds, since, until).values_list("destination", "kind").annotate(n=Sum("count"))
    for destination, kind, n in rows:
        found[destination][kind] = n
    return dict(found)


def latency(using: str, kind: str, q: float, since: datetime, until: datetime | None = None) -> float | None:
    """The q-quantile of a kind's latency in seconds, to the next power of two milliseconds; None without data."""
    rows = _tallies(using, (kind,), since, until).values_list("bucket").annotate(n=Sum("count"))
    return tallies.quantile(dict(rows), q)


def _tallies(using: str, kinds: Iterable[str], since: datetime | None, until: datetime | None) -> Any:
    rows = Tally.objects.using(using).filter(kind__in=tuple(kinds)).order_by()
    if since is not None:
        rows = rows.filter(minute__gte=since)
    return rows if until is None else rows.filter(minute__lte=until)
