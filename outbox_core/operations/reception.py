"""What became of a message at the consumers of this installation."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from django.db.models import Count

from outbox_core import envelope
from outbox_core.conf import settings
from outbox_core.inbox import lanes
from outbox_core.inbox.registry import Subscription, subscriptions
from outbox_core.models import Duplicate, Handling, Message, Receipt
from outbox_core.operations import dedupe
from outbox_core.operations.facts import Facts, gather
from outbox_core.transports.topics import matches

WORST = ("dead", "undecodable", "waiting", "retrying")
NOT_SEEN = "not seen"
FORGOTTEN = "forgotten"
NOT_VISIBLE = "not visible"


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer's view of one message. `state`: processed, stale, rejected, one of `WORST`, not seen, forgotten (the
    dedupe window is over, so its receipt would be gone), or not visible (its records stand in another database).
    `detail` is the error, if there is one."""

    consumer: str
    state: str
    at: datetime | None = None
    duplicates: int = 0
    detail: str = ""
    attempts: int = 0
    until: datetime | None = None  # of the next try
    failures: int = 0  # of the tries; a handler that asked for a later run has not failed
    behind: str = ""  # waiting: the message of its key that stands in the way, if it has an id


def consumers(message: Message, using: str = "default", facts: Facts | None = None) -> list[ConsumerState]:
    """Every consumer that should get this message, or that has seen it, by name. `facts`: if known already."""
    id_ = str(message.message_id)
    receipts = {r.consumer: r for r in Receipt.objects.using(using).filter(message_id=id_)}
    handlings = {
        h.consumer: h for h in Handling.objects.using(using).filter(message_id=id_).defer("body", "envelope")
    }
    seen = Duplicate.objects.using(using).filter(message_id=id_).exclude(consumer="").order_by()
    duplicates = dict(seen.values_list("consumer").annotate(n=Count("id")))
    meant = {s.consumer: s for s in interested(message, subscriptions().values())}
    found = [
        _state(name, meant.get(name), using, receipts.get(name), handlings.get(name), duplicates.get(name, 0))
        for name in sorted({*receipts, *handlings, *duplicates, *meant})
    ]
    if any(c.state == NOT_SEEN for c in found) and dedupe.is_over(facts or gather(message, using), using):
        return [replace(c, state=FORGOTTEN) if c.state == NOT_SEEN else c for c in found]
    return found


def may_repeat(message: Message, facts: Facts, using: str = "default") -> list[str] | None:
    """Past the dedupe window: the consumers for which one more copy may take effect a second time, none named if only
    those of other installations get it. None: the window is not over, or each of our consumers has its receipt."""
    if not dedupe.is_over(facts, using):
        return None
    found = consumers(message, using, facts)
    names = [c.consumer for c in found if c.state in (FORGOTTEN, NOT_VISIBLE)]
    return names if names or not found else None


def unfinished(message_ids: Iterable[str], using: str = "default") -> dict[str, ConsumerState]:
    """For each message id of which a consumer is not done: that consumer, one that gave up first. One query."""
    rows = Handling.objects.using(using).filter(message_id__in=list(message_ids)).defer("body", "envelope")
    worst = sorted(rows, key=lambda h: WORST.index(h.state), reverse=True)
    return {str(h.message_id): _open(h) for h in worst}


def _open(handling: Handling, duplicates: int = 0) -> ConsumerState:
    return ConsumerState(
        handling.consumer, handling.state, handling.received_at, duplicates, handling.error, handling.attempts,
        handling.available_at, handling.failures,
    )  # fmt: skip


def _in_the_way(handling: Handling, using: str) -> str:
    first = lanes.first_in_the_way(using, handling.consumer, handling.key)
    return str(first.message_id) if first and known([first.message_id], using) else ""


def known(message_ids: Iterable[str | None], using: str = "default") -> set[str]:
    """Those ids that are of messages of this outbox: a message of another producer has no page. One query."""
    ids = []
    for text in message_ids:
        with suppress(ValueError):
            ids.append(UUID(text or ""))
    found = Message.objects.using(using).filter(message_id__in=ids).values_list("message_id", flat=True)
    return {str(uuid) for uuid in found}


def interested(message: Message, known: Iterable[Subscription]) -> list[Subscription]:
    """The subscriptions whose queue the message is routed to, going by the code (not by the broker's bindings)."""
    exchange, routing_key = envelope.route(message.destination, message.type)
    if exchange != settings.EXCHANGE:
        return []
    return [s for s in known if any(matches(pattern, routing_key) for pattern in s.types)]


def _state(
    name: str, subscription: Subscription | None, using: str, receipt: Receipt | None, handling: Handling | None,
    duplicates: int,
) -> ConsumerState:  # fmt: skip
    if receipt is not None:
        return ConsumerState(
            name, receipt.outcome, receipt.processed_at, duplicates, attempts=receipt.attempt
        )
    if handling is not None:
        found = _open(handling, duplicates)
        return replace(found, behind=_in_the_way(handling, using)) if found.state == "waiting" else found
    if subscription is not None and subscription.using != using:
        return ConsumerState(name, NOT_VISIBLE)
    return ConsumerState(name, NOT_SEEN, duplicates=duplicates)
