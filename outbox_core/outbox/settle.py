"""Settling: what the broker answered becomes rows. Part of a turn, or, for late confirms, of a transaction that
holds the lock of the partition's present owner.

A confirm is a fact: it is recorded even if the Pending row is gone. A failure is an opinion: it counts only for a row
that is as it was read. Rows that someone else holds a lock on are skipped and left to a later turn.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from outbox_core import backoff
from outbox_core.conf import settings
from outbox_core.models import Dispatch, Message
from outbox_core.outbox.answers import NACKED, Answer
from outbox_core.outbox.failing import Delay, Failures
from outbox_core.outbox.queue import PARKED, PENDING, promote
from outbox_core.sql import Dialect
from outbox_core.tallies import NO_LATENCY, Count, Counts, bucket
from outbox_core.transports.base import Outcome

_DISPATCH = {
    "message": "bigint", "attempt": "integer", "position": "bigint", "cause": "text", "returned": "boolean",
}  # fmt: skip


class Settler:
    """Settles for one worker. `counts` collects what the caller adds to the tallies before it commits."""

    def __init__(self, db: Dialect, worker: str, rng: random.Random) -> None:
        self.db, self.worker, self.rng = db, worker, rng
        self.counts: Counts = Counts()
        self.failures = Failures(db, worker, self.counts)
        self.touched: set[tuple[int, str]] = set()

    def settle(self, answers: Sequence[Answer], *, own: bool = True) -> list[Answer]:
        """Write down the answers and promote what may go now. Returns those whose row is locked by someone else.

        `own`: under the own lease. Else (late confirms) only confirms are facts, and the rest is dropped.
        """
        facts = [a for a in answers if a.sent]
        left = self._confirm(facts)
        if own:
            left += self._fail([a for a in answers if not a.sent])
        promote(self.db, self.touched)
        self.touched.clear()
        return left

    def _confirm(self, facts: Sequence[Answer]) -> list[Answer]:
        if not facts:
            return []
        now = self.db.now()
        pending = self._lock(PENDING, [a.row.id for a in facts])
        locked = self._still_there([a.row.id for a in facts if a.row.id not in pending])
        facts, left = _split(facts, lambda a: a.row.id not in locked)
        # Only at the position that was sent: else it would eat a redispatch.
        self._delete(PENDING, _where_sent(facts, pending))
        if gone := [a for a in facts if a.row.id not in pending]:
            new, held = self._confirm_gone(gone)
            facts, left = [a for a in facts if a.row.id in pending] + new, left + held
        self._record(facts, now)
        return left

    def _confirm_gone(self, gone: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
        """Confirms without a Pending row: parked meanwhile (the parked row goes), or recorded before by a turn of
        which neither the reply nor the lease was left, or pruned. Returns what is to be recorded, and what pruning
        holds a lock on: whether that goes is not known yet."""
        alive = self._messages(gone, "FOR KEY SHARE SKIP LOCKED")  # only pruning conflicts with this lock
        held = self._messages(gone) - alive
        # A number of an attempt stands for one send.
        recorded = set(
            Dispatch.objects.using(self.db.using).filter(message__in=alive).values_list("message", "attempt")
        )
        new = [a for a in gone if a.row.id in alive and (a.row.id, a.attempt) not in recorded]
        parked = self._lock(PARKED, [a.row.id for a in new])
        self._delete(PARKED, _where_sent(new, parked))
        return new, [a for a in gone if a.row.id in held]

    def _messages(self, answers: Sequence[Answer], lock: str = "") -> set[int]:
        """Those whose message exists, and is not locked by someone else. None of a pruned one gets an orphan."""
        condition, ids = self.db.among("id", sorted(a.row.id for a in answers))
        found = self.db.execute(
            f"SELECT id FROM {Message._meta.db_table} WHERE {condition} {self.db.lock(lock)}", [ids]
        )
        return {id_ for (id_,) in found}

    def _record(self, facts: Sequence[Answer], now: datetime) -> None:
        if not facts:
            return
        rows = [
            (
                a.row.id, a.attempt, a.row.wire_position, "resend" if a.twice else a.row.cause,
                a.outcome is Outcome.RETURNED,
            )
            for a in facts
        ]  # fmt: skip
        table, parameters = self.db.table("f", _DISPATCH, rows)
        names, moment = ", ".join(_DISPATCH), "%s::timestamptz" if self.db.postgresql else "%s"
        self.db.execute(
            f"INSERT INTO {Dispatch._meta.db_table} (at, worker, {names}) SELECT {moment}, %s, {names} FROM {table}",
            [self.db.moment(now), self.worker, *parameters],
        )
        self.failures.record_first_sends(facts, now)
        for a in facts:
            first = a.row.attempts == 0
            waited = bucket((now - a.committed_at).total_seconds()) if first else NO_LATENCY
            self.counts[Count(a.row.destination, "dispatched", waited)] += 1

    def _fail(self, answers: Sequence[Answer]) -> list[Answer]:
        """Failures, unknowns and what was never written, each only for a row that is as it was read."""
        if not answers:
            return []
        ids = [a.row.id for a in answers]
        pending = self._lock(PENDING, ids)
        locked = self._still_there([i for i in ids if i not in pending])
        answers, left = _split(answers, lambda a: a.row.id not in locked)
        now = self.db.now()
        delays: list[Delay] = []
        dead: list[Answer] = []
        for a in answers:
            if pending.get(a.row.id) != (a.row.position, a.row.attempts):
                continue
            self.touched.add((a.row.partition, a.row.key))
            opened = a.attempt - a.row.attempts
            match a.outcome:
                case Outcome.INVALID:
                    dead.append(a)
                case Outcome.RETURNED | Outcome.REFUSED:
                    failures = a.row.failures + 1
                    if failures >= settings.MAX_ATTEMPTS:
                        dead.append(a)
                    else:
                        delays.append(Delay(a, self._backoff(failures), opened, 1))
                case Outcome.UNKNOWN:
                    delays.append(Delay(a, 0.0, opened, 0))
                case Outcome.ROAD:
                    delays.append(Delay(a, self._backoff(1), opened if a.error == NACKED else 0, 0))
                case _:
                    pass  # never written: nothing happened to it
        self.failures.delay(delays, now)
        self._delete(PENDING, dead)
        self.failures.bury(dead, now)
        return left

    def _backoff(self, failures: int) -> float:
        return backoff.delay(failures, settings.BACKOFF_BASE, settings.BACKOFF_CAP, self.rng)

    def _lock(self, table: str, ids: Collection[int]) -> dict[int, tuple[int, int]]:
        """Lock the rows that no one else holds: message -> position and attempts."""
        condition, among = self.db.among("message", sorted(set(ids)))
        rows = self.db.execute(
            f"SELECT message, position, attempts FROM {table} WHERE {condition} ORDER BY message "
            f"{self.db.lock('FOR UPDATE SKIP LOCKED')}",
            [among],
        )
        return {message: (position, attempts) for message, position, attempts in rows}

    def _still_there(self, ids: Collection[int]) -> set[int]:
        """Those of `ids`, which could not be locked, that are there all the same."""
        if not ids or not self.db.postgresql:
            return set()
        condition, among = self.db.among("message", sorted(set(ids)))
        return {m for (m,) in self.db.execute(f"SELECT message FROM {PENDING} WHERE {condition}", [among])}

    def _delete(self, table: str, answers: Sequence[Answer]) -> None:
        if answers:
            condition, among = self.db.among("message", sorted(a.row.id for a in answers))
            self.db.execute(f"DELETE FROM {table} WHERE {condition}", [among])
            self.touched |= {(a.row.partition, a.row.key) for a in answers}


def _where_sent(answers: Sequence[Answer], rows: Mapping[int, tuple[int, int]]) -> list[Answer]:
    """Those whose row stands at the position that was sent."""
    return [a for a in answers if a.row.id in rows and rows[a.row.id][0] == a.row.position]


def _split(answers: Sequence[Answer], keep: Any) -> tuple[list[Answer], list[Answer]]:
    return [a for a in answers if keep(a)], [a for a in answers if not keep(a)]
