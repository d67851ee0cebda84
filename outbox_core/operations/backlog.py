"""Before a deploy: does what was received and not finished still fit the code?"""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Count

from outbox_core.inbox.registry import subscriptions
from outbox_core.models import Binding, Handling, LoopbackDelivery
from outbox_core.operations.words import plural

OPEN = ("retrying", "waiting")


def check(using: str = "default") -> list[str]:
    """One sentence for each part of the backlog that this code would leave lying; empty if it fits."""
    return [*_handlings(using), *_queues(using)]


def _handlings(using: str) -> Iterator[str]:
    known = subscriptions()
    waiting = Handling.objects.using(using).filter(state__in=OPEN).order_by("consumer", "type")
    for consumer, type_, n in waiting.values_list("consumer", "type").annotate(n=Count("pk")):
        messages = f"{plural(n, 'received message')} of type {type_ or '(none)'}"
        if consumer not in known:
            yield f"{messages} {_wait(n)} for consumer {consumer}, which no code subscribes any more."
        elif known[consumer].handler_for(type_) is None:
            yield f"{messages} {_wait(n)} for consumer {consumer}, which has no function for that type any more."


def _queues(using: str) -> Iterator[str]:
    known = subscriptions()
    for queue in Binding.objects.using(using).order_by("queue").values_list("queue", flat=True).distinct():
        if queue not in known:
            stored = LoopbackDelivery.objects.using(using).filter(queue=queue).count()
            inside = (
                f" {plural(stored, 'message')} {'is' if stored == 1 else 'are'} still in it."
                if stored
                else ""
            )
            yield f"Queue {queue} was bound by this project, and no code consumes it any more.{inside}"


def _wait(n: int) -> str:
    return "waits" if n == 1 else "wait"
