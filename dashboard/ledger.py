"""The ledger of duplicates, filtered and counted for its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import QueryDict
from django.utils.translation import gettext as _

from dashboard import wording
from dashboard.filters import as_uuid, clean, moment
from outbox_core.inbox.registry import subscriptions
from outbox_core.models import Duplicate, Message, Receipt
from outbox_core.operations import dedupe
from outbox_core.operations.counting import capped

PRODUCER = "-"  # stands in an address for the empty consumer: a producer published the same id again


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an address asks for; empty does not filter."""

    cause: str = ""
    consumer: str = ""
    payload: str = ""
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A duplicate, with the digest of the copy that took effect, if it is known."""

    duplicate: Duplicate
    first_digest: str
    link: Any


def read(query: QueryDict, now: datetime) -> Wanted:
    """The filters of an address."""
    cause = query.get("cause", "")
    return Wanted(
        cause if cause in Duplicate.CAUSES else "",
        clean(query.get("consumer", "")),
        "differs" if query.get("payload") == "differs" else "",
        clean(query.get("message", "")),
        moment(query.get("since", ""), now),
    )


def matching(wanted: Wanted, using: str) -> QuerySet[Duplicate]:
    """The rows of the ledger that fit."""
    rows = Duplicate.objects.using(using).all()
    if wanted.cause:
        rows = rows.filter(cause=wanted.cause)
    if wanted.consumer:
        rows = rows.filter(consumer="" if wanted.consumer == PRODUCER else wanted.consumer)
    if wanted.payload:
        rows = rows.filter(same_payload=False)
    if wanted.message:
        rows = rows.filter(message_id=wanted.message)
    return rows.filter(at__gte=wanted.since) if wanted.since else rows


def rows(duplicates: Sequence[Duplicate], using: str) -> list[Row]:
    """Each with the digest of its first copy, in two queries."""
    ids = {d.message_id for d in duplicates}
    receipts = Receipt.objects.using(using).filter(message_id__in=ids)
    digests = {(r.consumer, r.message_id): r.digest for r in receipts}
    uuids = [u for u in map(as_uuid, ids) if u is not None]
    known = dict(
        Message.objects.using(using).filter(message_id__in=uuids).values_list("message_id", "digest")
    )
    found = []
    for d in duplicates:
        uuid = as_uuid(d.message_id)
        first = digests.get((d.consumer, d.message_id)) or (known.get(uuid, "") if uuid else "")
        found.append(Row(d, first, uuid if uuid in known else None))
    return found


def counts(using: str) -> dict[str, int]:
    """How many per cause, how many differ, and in all; counted up to a cap."""
    table = Duplicate.objects.using(using).order_by()
    found = {cause: capped(table.filter(cause=cause)) for cause in Duplicate.CAUSES}
    return {"all": capped(table), "differs": capped(table.filter(same_payload=False)), **found}


def consumers(using: str) -> list[str]:
    """Every consumer that the filter offers: those of the code, and those that the newest rows name."""
    newest = Duplicate.objects.using(using).order_by("-pk").values_list("consumer", flat=True)[:500]
    return sorted({name for name in (*subscriptions(), *newest) if name})


def window_advice(using: str) -> str:
    """What the gaps seen say of the dedupe window; empty if there were none."""
    found = dedupe.gaps(using)
    if found is None:
        return ""
    window = dedupe.window()
    said = {
        "window": wording.duration(window), "count": wording.compact(found.count), "share": f"{dedupe.SHARE:.0%}",
        "most": wording.duration(found.most), "longest": wording.duration(found.longest),
        "suggested": wording.duration(found.suggested),
    }  # fmt: skip
    seen = _(
        "Of the newest %(count)s copies %(share)s came within %(most)s of the first, the last after %(longest)s."
    )
    if found.suggested > window:
        verdict = _(
            "The dedupe window is %(window)s, and a copy after it takes effect: choose %(suggested)s."
        )
    elif found.suggested < window:
        verdict = _("The dedupe window is %(window)s; %(suggested)s would do, with room to spare.")
    else:
        verdict = _("The dedupe window of %(window)s fits.")
    return f"{seen} {verdict}" % said


def gaps_as_json(using: str) -> dict[str, Any] | None:
    """The same for programs, in seconds."""
    found = dedupe.gaps(using)
    if found is None:
        return None
    return {
        "count": found.count, "most": found.most.total_seconds(), "longest": found.longest.total_seconds(),
        "suggested_window": found.suggested.total_seconds(),
    }  # fmt: skip


def as_json(row: Row) -> dict[str, Any]:
    """A duplicate as the JSON list has it."""
    d = row.duplicate
    return {
        "id": d.pk, "message_id": d.message_id, "consumer": d.consumer, "type": d.type, "at": d.at, "cause": d.cause,
        "gap_seconds": d.gap.total_seconds() if d.gap is not None else None, "same_payload": d.same_payload,
        "attempt": d.attempt, "digest": d.digest, "first_digest": row.first_digest,
    }  # fmt: skip
