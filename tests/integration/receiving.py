"""What the tests of the receiving side share: deliveries as a broker hands them over, and consumers of their own."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dashboard.demo.models import Letter
from outbox_core.inbox import registry, retries
from outbox_core.inbox.message import InboxMessage
from outbox_core.inbox.outcomes import Outcome
from outbox_core.inbox.receiver import receive
from outbox_core.inbox.registry import Subscription
from outbox_core.models import Handling
from outbox_core.transports.base import Delivery

WORKER = "test-consumer"


@contextmanager
def subscribed(
    handler: Callable[[InboxMessage], Any], *types: str, consumer: str = "", **options: Any
) -> Iterator[Subscription]:
    """A consumer of this block's own, which calls `handler`."""
    name = consumer or f"consumer-{uuid.uuid4().hex[:12]}"
    registry.subscribe(*(types or ("test.said",)), consumer=name, **options)(handler)
    try:
        yield registry.subscriptions()[name]
    finally:
        registry.forget(name)


def delivery(
    payload: Any = None, *, queue: str = "", headers: dict[str, Any] | None = None, **changes: Any
) -> Delivery:
    """A delivery of our own format, with a new id unless one is given. `body` overrides `payload`."""
    fields: dict[str, Any] = {
        "handle": None, "queue": queue, "body": json.dumps({"n": 1} if payload is None else payload).encode(),
        "message_id": str(uuid.uuid4()), "type": "test.said", "exchange": "events", "routing_key": "test.said",
        "redelivered": False, "headers": {"outbox-attempt": 1, "outbox-version": 1, **(headers or {})},
        "content_type": "application/json",
    }  # fmt: skip
    return Delivery(**{**fields, **changes})


def take(subscription: Subscription, given: Delivery, **options: Any) -> Outcome:
    """Receive it as the consumer would; a back-off is a third of its ceiling."""
    return receive(given, subscription, WORKER, **{"rng": random.Random(7), **options})


def write_letter(message: InboxMessage) -> None:
    """A handler with an effect that can be counted."""
    Letter.objects.create(to=message.id[:100], subject=message.consumer[:200])


def letters(message_id: str | None = None) -> int:
    """How many effects there are, of one message or of all."""
    found = Letter.objects.all() if message_id is None else Letter.objects.filter(to=message_id[:100])
    return found.count()


def make_due(**which: Any) -> None:
    """Let the back-off of the kept messages be over."""
    from datetime import timedelta

    from outbox_core.clock import database_now

    rows = Handling.objects.filter(available_at__isnull=False, **which)
    rows.update(available_at=database_now() - timedelta(seconds=1))


def run_due(subscription: Subscription) -> list[Outcome]:
    """Run every kept message of the consumer that is due, once."""
    rows = retries.due("default", [subscription.consumer], 100)
    return [retries.run("default", id_, subscription, WORKER, random.Random(7)) for id_, _ in rows]
