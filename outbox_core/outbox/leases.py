"""Who sends what: leases, the partitions that they own, and what happens when an owner is gone.

A dispatcher holds one Lease, renewed in every turn; partitions point at it. `in_flight` names every message that
it may have sent and not settled. The order of locks is the same for everyone: Message, Lease, Partition, Pending.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import OperationalError
from django.db.models import F

from outbox_core.clock import ClockTimestamp, database_now
from outbox_core.conf import settings
from outbox_core.models import PARTITIONS, FailedAttempt, Lease, Partition, Pending
from outbox_core.sql import Dialect, exclusive

MAYBE_SENT = "MaybeSent"


class Fenced(Exception):
    """The own lease is gone: another process took over."""


class OwnerChanged(Exception):
    """The partition changed hands while its lock was awaited: roll back and begin again."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The dispatcher that owns a partition, locked until the caller's transaction ends."""

    token: int
    name: str
    in_flight: frozenset[int]
    since: datetime | None  # when it last wrote in_flight


def encode(ids: Iterable[int]) -> bytes:
    """Sorted ids as differences, each in base 128: a thousand neighbours take about a kilobyte."""
    out = bytearray()
    last = 0
    for id_ in sorted(ids):
        step, last = id_ - last, id_
        while step > 0x7F:
            out.append(0x80 | step & 0x7F)
            step >>= 7
        out.append(step)
    return bytes(out)


def decode(value: bytes | memoryview) -> list[int]:
    """The ids that `encode` wrote, ascending."""
    ids, last, step, shift = [], 0, 0, 0
    for byte in bytes(value):
        step |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            last += step
            ids.append(last)
            step = shift = 0
    return ids


def join(using: str, name: str) -> int:
    """Commit a new lease and return its token. Tokens are never used again, so an old owner is always told apart."""
    until = _later(database_now(using), settings.LEASE)
    return Lease.objects.using(using).create(name=name, until=until).token


def lock_own(db: Dialect, token: int) -> tuple[int, datetime]:
    """Lock the own lease: its number of turns and the database's clock. Raises Fenced if it is gone."""
    clock = "clock_timestamp()" if db.postgresql else "NULL"
    rows = db.execute(
        f"SELECT turn, {clock} FROM {Lease._meta.db_table} WHERE token = %s {db.lock('FOR NO KEY UPDATE')}",
        [token],
    )
    if not rows:
        raise Fenced
    return rows[0][0], rows[0][1] or db.now()


def renew(db: Dialect, token: int, in_flight: Iterable[int]) -> None:
    """The last statement of a turn: what may be sent once it has committed, and a lease that begins now
    (one that began with the turn would be over when a long turn commits)."""
    now = db.now()
    changed = db.count(
        f"UPDATE {Lease._meta.db_table} SET in_flight = %s, turn = turn + 1, until = %s, turned_at = %s "
        "WHERE token = %s",
        [
            encode(in_flight),
            db.to_database(_later(now, settings.LEASE)),
            db.to_database(now),
            token,
        ],
    )
    if not changed:
        raise Fenced


def committed_turns(using: str, token: int) -> int | None:
    """How many turns of the lease committed; waits for a session that may still be committing one. None if gone."""
    with exclusive(using) as db:
        rows = db.execute(
            f"SELECT turn FROM {Lease._meta.db_table} WHERE token = %s {db.lock('FOR NO KEY UPDATE')}",
            [token],
        )
    return rows[0][0] if rows else None


def rebalance(
    db: Dialect, token: int, mine: set[int], busy: set[int], leaving: bool = False
) -> tuple[set[int], set[int]]:
    """Own a fair share, as part of the caller's turn: claim what is free, free what is surplus and has nothing in
    flight (is not `busy`). Returns the partitions owned from now on, and those of them that may be read."""
    table = Partition._meta.db_table
    share = 0 if leaving else fair_share(db)
    keep, surplus = set(sorted(mine)[:share]), set(sorted(mine)[share:])
    if idle := surplus - busy:
        condition, numbers = db.among("number", sorted(idle))
        db.execute(f"UPDATE {table} SET lease = NULL WHERE {condition} AND lease = %s", [numbers, token])
    if len(keep) < share:
        claimed = db.execute(
            f"UPDATE {table} SET lease = %s WHERE number IN (SELECT number FROM {table} WHERE lease IS NULL "
            f"ORDER BY number LIMIT %s {db.lock('FOR UPDATE SKIP LOCKED')}) RETURNING number",
            [token, share - len(keep)],
        )
        keep |= {number for (number,) in claimed}
    return keep | (surplus & busy), keep


def fair_share(db: Dialect) -> int:
    """How many partitions each live dispatcher keeps."""
    live = Lease.objects.using(db.using).filter(until__gt=ClockTimestamp()).count()
    return -(-PARTITIONS // max(1, live))


def take_over(using: str, token: int) -> bool:
    """Bury one expired lease that is not the own one, in a transaction that holds nothing else: inside a turn,
    two owners that wake up together would wait for each other. True if there was one."""
    try:
        with exclusive(using) as db:
            if db.postgresql:
                db.execute("SELECT set_config('lock_timeout', '250ms', true)")
            expired = (
                Lease.objects.using(using).filter(until__lt=ClockTimestamp()).exclude(token=token)
                .order_by("token").select_for_update(skip_locked=db.postgresql).first()
            )  # fmt: skip
            if expired is None:
                return False
            bury(db, expired)
            return True
    except OperationalError:  # lock_timeout: its owner is in a turn, or another process buries it
        return False


def bury(db: Dialect, lease: Lease) -> None:
    """Delete a lease, say of everything that was in flight that it was maybe sent, and free its partitions."""
    # The row is read again under the lock: the first look may be older than the wait for it.
    rows = db.execute(
        f"DELETE FROM {Lease._meta.db_table} WHERE token = %s RETURNING in_flight", [lease.token]
    )
    if rows:
        count_maybe_sent(
            db.using, decode(rows[0][0]), lease.name, f"dispatcher {lease.name} stopped before its confirm"
        )
        Partition.objects.using(db.using).filter(lease=lease.token).update(lease=None)


def count_maybe_sent(using: str, ids: Iterable[int], worker: str, detail: str) -> None:
    """For what is still pending of `ids`: one more attempt, a FailedAttempt that says "maybe sent", no failure."""
    still = list(
        Pending.objects.using(using).filter(message__in=list(ids)).order_by("message").select_for_update()
        .values_list("message", "attempts")
    )  # fmt: skip
    Pending.objects.using(using).filter(message__in=[m for m, _ in still]).update(
        attempts=F("attempts") + 1, cause="resend"
    )
    FailedAttempt.objects.using(using).bulk_create(
        FailedAttempt(
            message_id=message,
            worker=worker,
            attempt=attempts + 1,
            kind="unknown",
            error_class=MAYBE_SENT,
            detail=detail,
            fingerprint=fingerprint(MAYBE_SENT, ""),
        )
        for message, attempts in still
    )


def lock_owner(using: str, partition: int) -> Owner | None:
    """Lock whoever owns the partition, for a verb or a late confirm; None if no one does.

    Runs in the caller's transaction (see `exclusive`), after the Message row is locked. An expired owner is buried
    first. Raises OwnerChanged if the partition changed hands meanwhile: roll back and begin again.
    """
    db = Dialect(using)
    partitions = Partition.objects.using(using)
    token: int | None = partitions.values_list("lease", flat=True).get(number=partition)
    owner = None
    if token is not None:
        lease = Lease.objects.using(using).filter(token=token).select_for_update(no_key=True).first()
        if lease is None:
            raise OwnerChanged
        if lease.until < db.now():
            bury(db, lease)
            token = None
        else:
            owner = Owner(token, lease.name, frozenset(decode(lease.in_flight)), lease.turned_at)
    table = Partition._meta.db_table
    # Without a Lease to lock, only the Partition keeps two verbs apart: with both inside, neither promotes what the
    # other leaves behind.
    lock = db.lock("FOR SHARE" if owner else "FOR NO KEY UPDATE")
    ((now,),) = db.execute(f"SELECT lease FROM {table} WHERE number = %s {lock}", [partition])
    if now != token:
        raise OwnerChanged
    return owner


def leave(db: Dialect, token: int) -> None:
    """Give up the lease and its partitions, in the caller's transaction."""
    Partition.objects.using(db.using).filter(lease=token).update(lease=None)
    Lease.objects.using(db.using).filter(token=token).delete()


def fingerprint(error_class: str, detail: str) -> str:
    """Groups equal failures: the class and the text without its digits, hashed."""
    text = "".join("#" if c.isdigit() else c for c in detail)
    return hashlib.sha256(f"{error_class}\n{text}".encode()).hexdigest()[:16]


def _later(moment: datetime, seconds: float) -> datetime:
    return moment + timedelta(seconds=seconds)
