"""What happened to a message, from its commit to its consumers, as entries for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from outbox_core.models import (
    Dispatch,
    Duplicate,
    FailedAttempt,
    Handling,
    Message,
    Operation,
    Parked,
    Receipt,
)
from outbox_core.operations.words import CAUSES, DONE, gist, plural

MOST = 200
"""Entries of one kind that are read: the newest. A message that failed a million times still has a page."""

KINDS = (
    "committed", "returned", "failed", "maybe_sent", "confirmed", "parked", "operated", "received", "handled",
    "duplicate", "stale",
)  # fmt: skip
"""In the order in which they happen, for entries of one instant."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a timeline. `worker` is who did it: a process, a consumer's name, or a person."""

    at: datetime
    kind: str
    text: str
    worker: str = ""
    attempt: int | None = None
    level: str = ""  # '', ok, warn, bad, dup
    detail: str = ""  # the whole of an error of which `text` has one line
    at_consumer: bool = False


def timeline(message: Message, using: str = "default") -> list[Entry]:
    """Everything that is known of a message, newest first. Seven queries."""
    entries = [
        _committed(message),
        *_attempts(message, using),
        *_dispatches(message, using),
        *_parked(message, using),
        *_operations(message, using),
        *_receptions(message, using),
        *_duplicates(message, using),
    ]
    return sorted(entries, key=_order, reverse=True)


def _order(entry: Entry) -> tuple[datetime, int]:
    """Of one instant, a consumer's failures come after what it received, and its giving up after them."""
    if not entry.at_consumer:
        return entry.at, 3 * KINDS.index(entry.kind)
    return entry.at, 3 * KINDS.index("received") + (2 if entry.kind == "parked" else 1)


def _committed(message: Message) -> Entry:
    return Entry(
        message.created_at, "committed", f"Committed by {message.source}", message.source, level="ok"
    )


def _attempts(message: Message, using: str) -> Iterator[Entry]:
    attempts = FailedAttempt.objects.using(using)
    own = attempts.filter(message=message.pk).order_by("-id")[:MOST]
    foreign = attempts.filter(foreign_id=str(message.message_id)).order_by("-id")[:MOST]
    for a in {a.pk: a for a in (*own, *foreign)}.values():
        said, whole = gist(a.detail)
        if a.consumer:
            text = f"{a.consumer} failed at try {a.attempt}: {a.error_class}: {said}"
            yield Entry(a.at, "failed", text, a.worker, a.attempt, "bad", whole, at_consumer=True)
        elif a.kind == "unknown":
            text = f"Maybe sent: attempt {a.attempt} had no confirm, {said}"
            yield Entry(a.at, "maybe_sent", text, a.worker, a.attempt, "warn", whole)
        elif a.error_class == "Unroutable":
            text = f"Attempt {a.attempt} returned: {said}"
            yield Entry(a.at, "returned", text, a.worker, a.attempt, "bad", whole)
        else:
            text = f"Attempt {a.attempt} failed: {a.error_class}: {said}"
            yield Entry(a.at, "failed", text, a.worker, a.attempt, "bad", whole)


def _dispatches(message: Message, using: str) -> Iterator[Entry]:
    for d in Dispatch.objects.using(using).filter(message=message.pk).order_by("-id")[:MOST]:
        why = CAUSES.get(d.cause, d.cause)
        if d.returned:
            text = f"Attempt {d.attempt} confirmed, but no queue was bound: no one received it ({why})"
            yield Entry(d.at, "confirmed", text, d.worker, d.attempt, "warn")
        else:
            yield Entry(
                d.at,
                "confirmed",
                f"Attempt {d.attempt} confirmed by the broker ({why})",
                d.worker,
                d.attempt,
                "ok",
            )


def _parked(message: Message, using: str) -> Iterator[Entry]:
    for p in Parked.objects.using(using).filter(message=message.pk, state="dead"):
        held = " Later messages of its key wait." if p.holds else ""
        failures = f"{p.failures} failure{'' if p.failures == 1 else 's'}"
        said, whole = gist(p.error or p.error_class)
        yield Entry(
            p.at, "parked", f"Gave up after {failures}: {said.rstrip('.')}.{held}", level="bad", detail=whole
        )


def _operations(message: Message, using: str) -> Iterator[Entry]:
    rows = Operation.objects.using(using).filter(message_id=str(message.message_id)).order_by("-id")[:MOST]
    for o in rows:
        text = f"{o.actor} {DONE.get(o.verb, o.verb)} it: {o.reason}"
        yield Entry(o.at, "operated", text, o.actor)


def _receptions(message: Message, using: str) -> Iterator[Entry]:
    id_ = str(message.message_id)
    for r in Receipt.objects.using(using).filter(message_id=id_)[:MOST]:
        yield Entry(r.received_at, "received", f"{r.consumer} received it", r.consumer, r.attempt)
        match r.outcome:
            case "processed":
                yield Entry(
                    r.processed_at, "handled", f"{r.consumer} handled it", r.consumer, r.attempt, "ok"
                )
            case "stale":
                text = f"{r.consumer} had applied a newer one of this key: no effect"
                yield Entry(r.processed_at, "stale", text, r.consumer, r.attempt, "warn")
            case _:
                yield Entry(
                    r.processed_at, "failed", f"{r.consumer} rejected it", r.consumer, r.attempt, "bad"
                )
    for h in Handling.objects.using(using).filter(message_id=id_).defer("body", "envelope")[:MOST]:
        yield from _handling(h)


def _handling(h: Handling) -> Iterator[Entry]:
    if h.ended_at is None:
        text = f"{h.consumer} received it, and is not done ({h.state})"
        yield Entry(h.received_at, "received", text, h.consumer)
        return
    yield Entry(h.received_at, "received", f"{h.consumer} received it", h.consumer)
    said, whole = gist(h.error or h.error_class)
    text = f"{h.consumer} could not read it: {said}"
    if h.state == "dead":
        text = f"{h.consumer} gave up after {plural(h.failures, 'failure')}: {said}"
    yield Entry(h.ended_at, "parked", text, h.consumer, level="bad", detail=whole, at_consumer=True)


def _duplicates(message: Message, using: str) -> Iterator[Entry]:
    rows = Duplicate.objects.using(using).filter(message_id=str(message.message_id)).order_by("-id")[:MOST]
    for d in rows:
        who = d.consumer or "The producer"
        what = "ignored a duplicate" if d.consumer else "published it again: no effect"
        payload = "" if d.same_payload else ", with another payload"
        level = "dup" if d.same_payload else "bad"
        yield Entry(d.at, "duplicate", f"{who} {what} ({d.cause}{payload})", d.consumer, d.attempt, level)
