"""Where a message stands and why: its state, its version, and what it waits for.

A page of fifty messages costs the same few queries as one. What happened to a message is in `timeline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Max

from outbox_core.clock import database_now
from outbox_core.models import Dispatch, Message, Operation, Parked, Partition, Pending
from outbox_core.operations.facts import Facts, acts_on
from outbox_core.operations.lineage import causes, effects
from outbox_core.operations.reception import ConsumerState, consumers, unfinished
from outbox_core.operations.timeline import Entry, timeline
from outbox_core.outbox import leases
from outbox_core.sql import Dialect

__all__ = [
    "EARLIER_CAP", "ConsumerState", "Entry", "Standing", "Wait", "causes", "consumers", "effects", "standing",
    "standings", "timeline", "unfinished",
]  # fmt: skip

EARLIER_CAP = 1000
"""`Wait.earlier` counts up to here; one more stands for "more than"."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a pending message waits for.

    `kind`: '' (it does not wait: not pending), due (next turn), scheduled and backoff and direct (`until`),
    behind (`earlier` ones of its key, the first is `by`), held (by the dead message `by`, since then),
    destination (it fails, and one message is tried at a time), in_flight (with the dispatcher `by` since),
    no_owner (no live dispatcher has its partition; `by` was the last).
    """

    kind: str = ""
    until: datetime | None = None
    by: str = ""
    since: datetime | None = None
    earlier: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a message stands, read at one time."""

    state: str
    version: str
    pending: Pending | None
    parked: Parked | None
    last_dispatch: Dispatch | None
    last_operation: Operation | None
    waits: Wait


def standing(message: Message, using: str = "default") -> Standing:
    """Where one message stands."""
    return standings([message], using)[message.pk]


def standings(messages: Iterable[Message], using: str = "default") -> dict[int, Standing]:
    """Where each message stands, by its row id, in at most eight queries however many there are."""
    uuids = {m.pk: m.message_id for m in messages}
    if not uuids:
        return {}
    pks = list(uuids)
    pending = Pending.objects.using(using).in_bulk(pks)
    parked = Parked.objects.using(using).in_bulk(pks)
    dispatches = _latest(Dispatch.objects.using(using).filter(message__in=pks), "message", "message_id")
    operations = _latest(acts_on(uuids.values(), using), "message_id", "message_id")
    waits = _waits(pending, using)
    found: dict[int, Standing] = {}
    for pk, uuid in uuids.items():
        last_dispatch, last_operation = dispatches.get(pk), operations.get(str(uuid))
        facts = Facts(pending.get(pk), parked.get(pk), None, last_dispatch, last_operation)
        found[pk] = Standing(
            str(facts.state), facts.version, facts.pending, facts.parked, last_dispatch, last_operation,
            waits.get(pk, Wait()),
        )  # fmt: skip
    return found


def _latest(rows: Any, group: str, attribute: str) -> dict[Any, Any]:
    """The newest row per group, in one query."""
    ids = rows.order_by().values(group).annotate(newest=Max("id")).values("newest")
    return {getattr(row, attribute): row for row in rows.model.objects.using(rows.db).filter(pk__in=ids)}


@dataclass(frozen=True, slots=True)
class _Owner:
    name: str
    live: bool
    until: datetime
    in_flight: frozenset[int]
    since: datetime | None


def _waits(pending: Mapping[int, Pending], using: str) -> dict[int, Wait]:
    if not pending:
        return {}
    now = database_now(using)
    owners = _owners({p.partition for p in pending.values()}, now, using)
    lanes = _lanes([p.pk for p in pending.values() if p.key and not p.scheduled], using)
    blocking = {lane.held for lane in lanes.values()} | {lane.first for lane in lanes.values()}
    names = _names([pk for pk in blocking if pk is not None], using)
    return {
        pk: _wait(row, now, owners.get(row.partition), lanes.get(pk), names) for pk, row in pending.items()
    }


def _wait(
    row: Pending, now: datetime, owner: _Owner | None, lane: _Lane | None, names: Mapping[int, str]
) -> Wait:  # fmt: skip
    due = row.available_at
    if owner and owner.live and row.pk in owner.in_flight:
        return Wait("in_flight", by=owner.name, since=owner.since)
    if row.scheduled:
        return Wait("scheduled", until=due)
    if row.stranded:
        return Wait("destination")
    if row.direct and due and due > now:
        return Wait("direct", until=due)
    if lane and lane.held is not None:
        return Wait("held", by=names.get(lane.held, ""), since=lane.held_since, earlier=lane.earlier)
    if lane and lane.first is not None:
        return Wait("behind", by=names.get(lane.first, ""), earlier=lane.earlier)
    if due and due > now:
        return Wait("backoff", until=due)
    if owner is None or not owner.live:
        return Wait("no_owner", by=owner.name if owner else "", since=owner.until if owner else None)
    return Wait("due", since=due)


def _owners(partitions: Iterable[int], now: datetime, using: str) -> dict[int, _Owner]:
    rows = Partition.objects.using(using).filter(number__in=partitions, lease__token__isnull=False)
    decoded: dict[int, _Owner] = {}
    found: dict[int, _Owner] = {}
    for row in rows.select_related("lease"):
        lease = row.lease
        assert lease is not None  # the join lets no other row through
        if lease.token not in decoded:
            in_flight = frozenset(leases.decode(lease.in_flight))
            decoded[lease.token] = _Owner(
                lease.name, lease.until > now, lease.until, in_flight, lease.turned_at
            )
        found[row.number] = decoded[lease.token]
    return found


@dataclass(frozen=True, slots=True)
class _Lane:
    first: int | None  # the first of the earlier ones
    earlier: int
    held: int | None  # the dead message that holds the key
    held_since: datetime | None


_PENDING, _PARKED = Pending._meta.db_table, Parked._meta.db_table
# Written as the index's condition is, or SQLite does not see that it applies.
_LANE = "q.partition = p.partition AND q.key = p.key AND NOT (q.key = '') AND NOT q.scheduled"
_BEFORE = f"{_LANE} AND q.position < p.position"
_HOLDS = f"FROM {_PARKED} h WHERE h.partition = p.partition AND h.key = p.key AND h.holds"

# Index: lane for the earlier ones, holds for the dead one. Each probe reads at most EARLIER_CAP + 1 rows.
_LANES = f"""
SELECT p.message,
       (SELECT q.message FROM {_PENDING} q WHERE {_BEFORE} ORDER BY q.position LIMIT 1),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {_PENDING} q WHERE {_BEFORE} LIMIT {EARLIER_CAP + 1}) AS capped),
       (SELECT h.message {_HOLDS} ORDER BY h.message LIMIT 1),
       (SELECT h.at {_HOLDS} ORDER BY h.message LIMIT 1)
FROM {_PENDING} p WHERE """


def _lanes(pks: list[int], using: str) -> dict[int, _Lane]:
    if not pks:
        return {}
    db = Dialect(using)
    condition, among = db.among("p.message", pks)
    return {
        pk: _Lane(first, earlier, held, db.from_database(since))
        for pk, first, earlier, held, since in db.execute(_LANES + condition, [among])
    }


def _names(pks: list[int], using: str) -> dict[int, str]:
    """The public ids of messages, as text."""
    if not pks:
        return {}
    found = Message.objects.using(using).filter(pk__in=pks).values_list("pk", "message_id")
    return {pk: str(uuid) for pk, uuid in found}
