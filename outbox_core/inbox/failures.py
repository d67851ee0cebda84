"""When a handler fails: the failure is written down in a second transaction, and decides what happens next.

A run that fails is tried again after a back-off, from the row in `Handling`; never by the broker, whose redelivery
knows no pause and no count. After MAX_ATTEMPTS failures, or at once for `Reject`, the message is dead and visible.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import transaction

from outbox_core import backoff, tallies
from outbox_core.conf import settings
from outbox_core.inbox import kept, lanes, locks
from outbox_core.inbox.outcomes import Outcome
from outbox_core.models import FailedAttempt, Handling, Message, Receipt
from outbox_core.outbox.leases import fingerprint
from outbox_core.verdicts import Reject, RetryLater

if TYPE_CHECKING:
    from outbox_core.inbox.receiver import Run

log = logging.getLogger("outbox.inbox")

LONGEST = 10_000  # bytes of an error's text that are kept
FRAMES = 5  # of the traceback, innermost last

UNFINISHED = "Unfinished"
DIED = "ProcessDied"


def record(run: Run, error: BaseException) -> Outcome:
    """Write down that a run failed. Its transaction has rolled back; this is a new one, which commits here.

    BUSY if another process has the message by now. HANDLED if there is a receipt after all: the reply to COMMIT
    was lost, or what failed was something that the handler had registered with `on_commit`.
    """
    with transaction.atomic(using=run.using, durable=True):
        now = locks.take(run.using, run.consumer, run.arrived.id)
        if now is None:
            return Outcome.BUSY
        if run.in_order:
            locks.take_key(run.using, run.consumer, run.arrived.key)
        identity = {"consumer": run.consumer, "message_id": run.arrived.id}
        if Receipt.objects.using(run.using).filter(**identity).exists():
            log.warning(
                "%s is handled by %s, but after its commit: %s", run.arrived.id, run.consumer, describe(error),
                extra={"action": "after_commit_failed", "message_id": run.arrived.id, "consumer": run.consumer},
            )  # fmt: skip
            return Outcome.HANDLED
        row = Handling.objects.using(run.using).filter(**identity).first()
        if run.row is None:
            if row is not None:
                return Outcome.BUSY  # kept by another meanwhile: the next look records a duplicate
            row = kept.keep(
                run.arrived,
                run.consumer,
                "retrying",
                available_at=now,
                received_at=now,
                attempts=1,
                failures=1,
            )
        elif row is None or (row.pk, row.attempts) != (run.row.pk, run.row.attempts):
            return Outcome.GONE
        return _decide(run, row, error, now)


def _decide(run: Run, row: Handling, error: BaseException, now: datetime) -> Outcome:
    if isinstance(error, RetryLater):  # no failure: the one that was counted when the run began is taken back
        row.failures -= 1
        _retry(
            run, row, now, error.delay, "RetryLater", f"the handler asked to run again in {error.delay:g} s"
        )
        return Outcome.KEPT
    error_class, text = type(error).__qualname__[:255], describe(error)
    permanent = isinstance(error, Reject)
    attempt(
        run,
        row,
        now,
        error_class,
        clip(f"{text}\n{_frames(error)}".strip()),
        "permanent" if permanent else "transient",
    )
    if permanent or row.failures >= settings.MAX_ATTEMPTS:
        bury(run, row, now, error_class, text)
        return Outcome.DEAD
    pause = backoff.delay(row.failures, settings.BACKOFF_BASE, settings.BACKOFF_CAP, run.rng)
    _retry(run, row, now, pause, error_class, text)
    log.warning(
        "%s failed at %s (failure %d): %s; again in %.1f s",
        run.consumer, run.arrived.id, row.failures, text.partition("\n")[0][:200], pause,
        extra={"action": "handling_failed", "message_id": run.arrived.id, "consumer": run.consumer},
    )  # fmt: skip
    return Outcome.KEPT


def _retry(run: Run, row: Handling, now: datetime, pause: float, error_class: str, text: str) -> None:
    row.state, row.available_at, row.ended_at = "retrying", now + timedelta(seconds=pause), None
    _say(row, error_class, text)
    row.save(using=run.using)


def bury(run: Run, row: Handling, now: datetime, error_class: str, text: str) -> None:
    """The message is dead: it stays where it is, visible, until a person retries or discards it."""
    row.state, row.available_at, row.ended_at = "dead", None, now
    _say(row, error_class, text)
    row.save(using=run.using)
    _count(run, "handling_dead", now)
    if run.in_order:
        lanes.promote(run.using, run.consumer, run.arrived.key, now)
    log.error(
        "%s gave up on %s after %d failures: %s",
        run.consumer, run.arrived.id, row.failures, text.partition("\n")[0][:200],
        extra={"action": "handling_dead", "message_id": run.arrived.id, "consumer": run.consumer},
    )  # fmt: skip


def give_up(run: Run, now: datetime, error_class: str, reason: str) -> None:
    """No handler can be given it: keep it as it came, with the reason, in the caller's transaction."""
    row = run.row or kept.keep(run.arrived, run.consumer, "undecodable", received_at=now)
    row.state, row.available_at, row.ended_at = "undecodable", None, now
    _say(row, error_class, reason)
    row.save(using=run.using)
    attempt(run, row, now, error_class, reason, "permanent")
    _count(run, "handling_dead", now)
    if run.in_order:
        lanes.promote(run.using, run.consumer, run.arrived.key, now)
    log.error(
        "%s cannot read %s: %s", run.consumer, row.message_id, reason,
        extra={"action": "undecodable", "message_id": row.message_id, "consumer": run.consumer},
    )  # fmt: skip


def refuse(run: Run, error: Exception) -> Outcome:
    """Our own code could not cope with a message before any handler saw it: it must not stop its queue. Commits.

    Raises what the database raises if it cannot even be kept; then it was not the message's fault.
    """
    log.error("%s could not be received", run.arrived.id, exc_info=error, extra={"action": "receive_failed"})
    with transaction.atomic(using=run.using, durable=True):
        now = locks.take(run.using, run.consumer, run.arrived.id)
        identity = {"consumer": run.consumer, "message_id": run.arrived.id}
        known = (Receipt, Handling) if run.row is None else (Receipt,)
        if now is None or any(model.objects.using(run.using).filter(**identity).exists() for model in known):
            return Outcome.BUSY  # another has it: look again
        give_up(run, now, type(error).__qualname__[:255], f"it could not be received: {describe(error)}")
    return Outcome.UNDECODABLE


def attempt(run: Run, row: Handling, now: datetime, error_class: str, detail: str, kind: str) -> None:
    """Write down one failed run, in the caller's transaction."""
    FailedAttempt.objects.using(run.using).create(
        message=_own(run), foreign_id=run.arrived.id, consumer=run.consumer, at=now, worker=run.worker,
        attempt=row.attempts, error_class=error_class, detail=detail,
        fingerprint=fingerprint(error_class, detail.partition("\n")[0]), kind=kind,
    )  # fmt: skip
    _count(run, "handling_failed", now)


def _own(run: Run) -> Message | None:
    """Our own Message with that id, if it is one."""
    try:
        message_id = UUID(run.arrived.id)
    except ValueError:
        return None
    return Message.objects.using(run.using).filter(message_id=message_id).only("id").first()


def _count(run: Run, kind: str, now: datetime) -> None:
    tallies.add(run.using, run.worker, Counter({tallies.Count(run.consumer, kind): 1}), now)


def _say(row: Handling, error_class: str, text: str) -> None:
    row.error_class, row.error = error_class, text
    row.fingerprint = fingerprint(error_class, text.partition("\n")[0])


def describe(error: BaseException) -> str:
    """The error's own text, storable and at most 10 kB; its class where it has none."""
    try:
        text = str(error)
    except Exception:  # whatever a stranger's __str__ raises
        text = ""
    return clip(text) or type(error).__qualname__


def clip(text: str) -> str:
    """The text as both databases store it, cut to 10 kB."""
    text = text.replace("\0", "\N{SYMBOL FOR NULL}")
    return text.encode("utf-8", "replace")[:LONGEST].decode("utf-8", "ignore")


def _frames(error: BaseException) -> str:
    """Where it was raised. Code locations only: values may be secret."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return "\n".join(f"  {f.filename}:{f.lineno} in {f.name}" for f in frames)
