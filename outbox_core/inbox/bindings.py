"""The queues and bindings on the broker: declared from the code, and unbound when the code is gone.

A binding whose subscription was removed would keep delivering for ever. So what was declared is remembered in
`Binding`, and what is remembered but not subscribed any more is unbound.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction

from outbox_core.conf import settings
from outbox_core.inbox.registry import queues, subscriptions
from outbox_core.models import Binding
from outbox_core.transports.base import Difference, Queue, Transport


def apply(transport: Transport, using: str) -> list[Difference]:
    """Declare every subscribed queue with its bindings, unbind what is gone, and remember. Idempotent.

    Returns what could not be done. Raises TransportError if the broker can't be reached; then nothing is forgotten.
    """
    wanted = _wanted(transport, using)
    lost = gone(using)
    problems = transport.apply_topology(wanted, lost)
    _remember(using, wanted, lost, {p.name for p in problems})
    return problems


def check(transport: Transport, using: str) -> list[Difference]:
    """What is missing or differs on the broker, and what is bound without a subscription. Changes nothing."""
    wanted = _wanted(transport, using)
    found = transport.check_topology(wanted)
    named = {difference.name for difference in found}
    found += [  # AMQP can't list bindings, so those that were never remembered count as missing
        Difference("binding", queue, f'"{queue}" is not known to be bound to "{pattern}"')
        for queue, pattern in _never_bound(using, wanted)
        if queue not in named
    ]
    return found + [
        Difference("binding", queue, f'"{queue}" is still bound to "{pattern}", which no code subscribes to')
        for queue, pattern in gone(using)
    ]


def gone(using: str) -> list[tuple[str, str]]:
    """Remembered bindings, as (queue, pattern), that nothing subscribes to any more."""
    return sorted(_known(using) - _pairs(queues()))


def _never_bound(using: str, wanted: Iterable[Queue]) -> list[tuple[str, str]]:
    """Subscribed bindings, as (queue, pattern), that no one has remembered."""
    return sorted(_pairs(wanted) - _known(using))


def _known(using: str) -> set[tuple[str, str]]:
    remembered = Binding.objects.using(using).filter(exchange=settings.EXCHANGE)
    return set(remembered.values_list("queue", "pattern"))


def _pairs(wanted: Iterable[Queue]) -> set[tuple[str, str]]:
    return {(queue.name, pattern) for queue in wanted for pattern in queue.patterns}


def _wanted(transport: Transport, using: str) -> list[Queue]:
    """Every queue; of the embedded broker, which each database has its own of, those that are consumed there."""
    here = {name for name, s in subscriptions().items() if s.using == using or transport.name != "loopback"}
    return queues(here)


def _remember(using: str, wanted: Iterable[Queue], lost: Iterable[tuple[str, str]], failed: set[str]) -> None:
    bindings = Binding.objects.using(using)
    with transaction.atomic(using=using):
        new = _pairs(queue for queue in wanted if queue.name not in failed) - _known(using)
        bindings.bulk_create(
            [Binding(queue=q, exchange=settings.EXCHANGE, pattern=p) for q, p in sorted(new)],
            ignore_conflicts=True,
        )
        for queue, pattern in lost:
            if queue not in failed:
                bindings.filter(queue=queue, exchange=settings.EXCHANGE, pattern=pattern).delete()
