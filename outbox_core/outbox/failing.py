"""What a failed send leaves behind: a later time in the queue, or a dead message, and the record of the attempt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from outbox_core.conf import settings
from outbox_core.models import FailedAttempt, Parked
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.leases import MAYBE_SENT, fingerprint
from outbox_core.outbox.queue import PENDING
from outbox_core.sql import Dialect
from outbox_core.states import State
from outbox_core.tallies import Count, Counts
from outbox_core.transports.base import Outcome

TWICE = "the broker closed the channel for another message before it confirmed this one; sent again at once"
LONGEST_ERROR = 10_000  # characters of an error text that are kept


class Delay(NamedTuple):
    """A row that goes back into the queue: for how many seconds, and what is added to its two counters."""

    answer: Answer
    wait: float
    attempts: int
    failures: int


class Failures:
    """Writes in the caller's transaction, for rows that it has locked. `counts` collects what goes to the tallies."""

    def __init__(self, db: Dialect, worker: str, counts: Counts) -> None:
        self.db, self.worker, self.counts = db, worker, counts

    def delay(self, delays: Sequence[Delay], now: datetime) -> None:
        """Back into the queue, later. The time counts from the failure, not from the start of a slow batch."""
        if not delays:
            return
        rows = [
            (
                a.row.id, a.row.attempts, self.db.moment(now + timedelta(seconds=wait)), attempts, failures,
                "resend" if a.outcome is Outcome.UNKNOWN else "retry" if failures and a.row.cause == "first"
                else a.row.cause,
                a.error[:255], a.detail[:LONGEST_ERROR],
            )
            for a, wait, attempts, failures in delays
        ]  # fmt: skip
        columns = {
            "message": "bigint", "seen": "integer", "at": "timestamptz", "attempts": "integer",
            "failures": "integer", "cause": "text", "error_class": "text", "last_error": "text",
        }  # fmt: skip
        table, parameters = self.db.table("x", columns, rows)
        self.db.execute(
            f"UPDATE {PENDING} SET available_at = x.at, stranded = {self.db.false}, "
            f"attempts = {PENDING}.attempts + x.attempts, failures = {PENDING}.failures + x.failures, "
            f"cause = x.cause, error_class = x.error_class, last_error = x.last_error FROM {table} "
            f"WHERE {PENDING}.message = x.message AND {PENDING}.attempts = x.seen",
            parameters,
        )
        self._record_failures([a for a, _, opened, _ in delays if opened], now)

    def bury(self, dead: Sequence[Answer], now: datetime) -> None:
        """Give up: the row has left the queue and waits for a person; its key waits with it, unless ON_DEAD is skip."""
        if not dead:
            return
        Parked.objects.using(self.db.using).bulk_create(
            Parked(
                message_id=a.row.id,
                state=State.DEAD,
                partition=a.row.partition,
                key=a.row.key,
                position=a.row.position,
                first_position=a.row.first_position,
                late=a.row.late,
                type=a.row.type,
                destination=a.row.destination,
                holds=bool(a.row.key) and settings.ON_DEAD == "block",
                at=now,
                attempts=a.attempt,
                failures=a.row.failures + 1,
                error_class=a.error[:255],
                error=a.detail[:LONGEST_ERROR],
                fingerprint=fingerprint(a.error, a.detail),
                operation=a.row.operation,
            )
            for a in dead
        )
        self._record_failures(dead, now)
        for a in dead:
            self.counts[Count(a.row.destination, "dead")] += 1

    def _record_failures(self, answers: Sequence[Answer], now: datetime) -> None:
        self.record_first_sends(answers, now)
        kinds = {
            Outcome.INVALID: "permanent", Outcome.UNKNOWN: "unknown", Outcome.ROAD: "transient",
            Outcome.RETURNED: "permanent", Outcome.REFUSED: "permanent",
        }  # fmt: skip
        FailedAttempt.objects.using(self.db.using).bulk_create(
            FailedAttempt(
                message_id=a.row.id,
                at=now,
                worker=self.worker,
                attempt=a.attempt,
                error_class=(MAYBE_SENT if a.outcome is Outcome.UNKNOWN else a.error)[:255],
                detail=a.detail[:LONGEST_ERROR],
                fingerprint=fingerprint(a.error, a.detail),
                kind=kinds[a.outcome],
            )
            for a in answers
        )
        for a in answers:
            if a.outcome is not Outcome.UNKNOWN:
                self.counts[Count(a.row.destination, "failed")] += 1

    def record_first_sends(self, answers: Sequence[Answer], now: datetime) -> None:
        """Of what was sent twice nobody knows what became of the first copy."""
        FailedAttempt.objects.using(self.db.using).bulk_create(
            FailedAttempt(
                message_id=a.row.id, at=now, worker=self.worker, attempt=a.attempt - 1, error_class=MAYBE_SENT,
                detail=TWICE, fingerprint=fingerprint(MAYBE_SENT, ""), kind="unknown",
            )
            for a in answers if a.twice
        )  # fmt: skip
