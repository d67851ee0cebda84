"""Order per key on the receiving side: what `ordered=True` and `discard_stale=True` stand on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Q, QuerySet

from outbox_core.conf import settings
from outbox_core.inbox.message import Arrived
from outbox_core.models import Handling, Newest
from outbox_core.sql import Dialect


def held(using: str, consumer: str, arrived: Arrived) -> bool:
    """Whether an earlier message of the key stands in the way: one that retries, waits, or is dead (ON_DEAD)."""
    return _lane(using, consumer, arrived.key).filter(_holds()).exists()


def promote(using: str, consumer: str, key: str, now: datetime) -> None:
    """Whatever ends a hold ends with this, in its transaction: the first that waits may go, if nothing holds it."""
    first = first_in_the_way(using, consumer, key)
    if first is not None and first.state == "waiting":
        _lane(using, consumer, key).filter(pk=first.pk, state="waiting").update(
            state="retrying", available_at=now
        )


def first_in_the_way(using: str, consumer: str, key: str) -> Handling | None:
    """What the later ones of the key wait for at this consumer. Index: handling_key."""
    return _lane(using, consumer, key).filter(_holds()).order_by("id").first()


def advance(using: str, consumer: str, arrived: Arrived, now: datetime) -> bool:
    """Take the row of the newest position and move it on. False if this one is not newer: it is stale.

    The row is locked until the transaction ends, so of two that run at once the older one sees the newer one.
    (Comparing receipts instead lets the older one win.) A message without key or position is never stale.
    """
    if arrived.position is None or not arrived.key:
        return True
    db = Dialect(using)
    table = Newest._meta.db_table
    rows = db.execute(
        f"INSERT INTO {table} (consumer, source, key, position, at) VALUES (%s, %s, %s, %s, %s) "
        "ON CONFLICT (consumer, source, key) DO UPDATE SET position = excluded.position, at = excluded.at "
        f"WHERE {table}.position < excluded.position RETURNING position",
        [consumer, arrived.source, arrived.key, arrived.position, db.to_database(now)],
    )
    return bool(rows)


def lock_newest(using: str, consumer: str, keys: Sequence[tuple[str, str]]) -> None:
    """Lock the rows of these (source, key), which `advance` would otherwise lock one after the other."""
    db = Dialect(using)
    if db.postgresql:
        table, parameters = db.table("k", {"source": "text", "key": "text"}, sorted(keys))
        db.execute(
            f"SELECT 1 FROM {Newest._meta.db_table} n JOIN {table} ON n.source = k.source AND n.key = k.key "
            "WHERE n.consumer = %s ORDER BY n.source, n.key FOR UPDATE OF n",
            [*parameters, consumer],
        )


def _lane(using: str, consumer: str, key: str) -> QuerySet[Handling]:
    return Handling.objects.using(using).filter(consumer=consumer, key=key)


def _holds() -> Q:
    states = ["retrying", "waiting", "dead"] if settings.ON_DEAD == "block" else ["retrying", "waiting"]
    return Q(state__in=states)
