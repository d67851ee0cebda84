"""The queues and bindings on the broker: declared from the code, and unbound when the code is gone.

A binding whose subscription was removed would keep delivering for ever. So what was declared is remembered in
`Binding`, and what is remembered but not subscribed any more is unbound.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction

from outbox_core.conf import settings
from outbox_core.inbox.registry import queues
from outbox_core.models import Binding
from outbox_core.transports.base import Difference, Queue, Transport


def apply(transport: Transport, using: str) -> list[Difference]:
    """Declare every subscribed queue with its bindings, unbind what is gone, and remember. Idempotent.

    Returns what could not be done. Raises TransportError if the broker can't be reached; then nothing is forgotten.
    """
    wanted = queues()
    lost = gone(using, wanted)
    problems = transport.apply_topology(wanted, lost)
    _remember(using, wanted, lost, {p.name for p in problems})
    return problems


def check(transport: Transport, using: str) -> list[Difference]:
    """What is missing or differs on the broker, and what is bound without a subscription. Changes nothing."""
    wanted = queues()
    found = transport.check_topology(wanted)
    named = {difference.name for difference in found}
    found += [  # AMQP can't list bindings, so those that were never remembered count as missing
        Difference("binding", queue, f'"{queue}" is not known to be bound to "{pattern}"')
        for queue, pattern in _never_bound(using, wanted)
        if queue not in named
    ]
    return found + [
        Difference("binding", queue, f'"{queue}" is still bound to "{pattern}", which no code subscribes to')
        for queue, pattern in gone(using, wanted)
    ]


def gone(using: str, wanted: Iterable[Queue]) -> list[tuple[str, str]]:
    """Remembered bindings, as (queue, pattern), that nothing subscribes to any more."""
    current = {(queue.name, pattern) for queue in wanted for pattern in queue.patterns}
    known = Binding.objects.using(using).filter(exchange=settings.EXCHANGE).values_list("queue", "pattern")
    return sorted(set(known) - current)


def _never_bound(using: str, wanted: Iterable[Queue]) -> list[tuple[str, str]]:
    """Subscribed bindings, as (queue, pattern), that no one has remembered."""
    current = {(queue.name, pattern) for queue in wanted for pattern in queue.patterns}
    known = Binding.objects.using(using).filter(exchange=settings.EXCHANGE).values_list("queue", "pattern")
    return sorted(current - set(known))


def _remember(using: str, wanted: Iterable[Queue], lost: Iterable[tuple[str, str]], failed: set[str]) -> None:
    bindings = Binding.objects.using(using)
    with transaction.atomic(using=using):
        known = set(bindings.filter(exchange=settings.EXCHANGE).values_list("queue", "pattern"))
        new = {
            (queue.name, pattern)
            for queue in wanted
            if queue.name not in failed
            for pattern in queue.patterns
        }
        bindings.bulk_create(
            [Binding(queue=q, exchange=settings.EXCHANGE, pattern=p) for q, p in sorted(new - known)],
            ignore_conflicts=True,
        )
        for queue, pattern in lost:
            if queue not in failed:
                bindings.filter(queue=queue, exchange=settings.EXCHANGE, pattern=pattern).delete()
