"""Faults that a person can cause at /demo/, each to see what Outboard makes of it.

Every function commits what it does and returns one sentence that says what to look at.
"""

from __future__ import annotations

import time
from contextlib import closing
from uuid import UUID

from django.db import transaction

from dashboard.demo.models import Switch
from outbox_core import envelope, publish
from outbox_core.clock import lease_clock
from outbox_core.conf import settings
from outbox_core.errors import TransportError
from outbox_core.models import Dispatch, Message, Receipt
from outbox_core.transports import transport
from outbox_core.transports.base import Outcome

BREAK_MAIL, SLOW, POISON, TRAFFIC = "break_mail", "slow_handler", "poison", "traffic"
SLOWEST = 5.0  # seconds; on SQLite a handler holds the one write lock so long
FASTEST_TRAFFIC = 200.0  # messages a second
PATIENCE = 1.8  # seconds that a person waits for the broker to take a copy


def publish_unroutable() -> str:
    """Publish a message of a type that no queue is bound to."""
    with transaction.atomic():
        message = publish(
            "demo.nobody_listens", {"note": "No queue is bound to this type."}, key="demo-unroutable"
        )
    return (
        f"Message {message.message_id} has a type that no queue is bound to: it retries, then is dead as unroutable. "
        "Look at Messages, Retrying, and at its page for what to do."
    )


def deliver_twice(message_id: UUID | str | None = None) -> str:
    """Put a second copy of a dispatched message on its queues, as a broker or a producer might.

    Left out, the newest message that was dispatched and processed. Raises Message.DoesNotExist, ValueError for a
    message that was not dispatched yet, and TransportError if the broker did not take the copy.
    """
    message = _message(message_id)
    dispatch = message.dispatches.order_by("id").first()
    if dispatch is None:
        raise ValueError(
            f"message {message.message_id} was not dispatched yet: there is nothing to deliver twice"
        )
    send_copy(message, dispatch)
    return (
        f"A second copy of {message.type} {message.message_id} is on its way: each consumer that has processed the "
        "first has no effect from it. Look at Duplicates, and at the message's timeline."
    )


def send_copy(message: Message, dispatch: Dispatch) -> None:
    """Publish the same envelope once more, past the outbox. Raises TransportError."""
    copy = envelope.write(message, tag=message.pk, attempt=dispatch.attempt, position=dispatch.position)
    publisher = transport().publisher()
    until = time.monotonic() + PATIENCE
    with closing(publisher):
        publisher.open()
        while not publisher.state.usable and time.monotonic() < until:
            publisher.wait(0.1)
        publisher.submit([[copy]], lease_clock() + PATIENCE)
        while not (results := publisher.take()):
            if time.monotonic() >= until:
                raise TransportError(
                    f"the broker did not take the copy: {publisher.state.detail or 'no answer'}"
                )
            publisher.wait(0.1)
    if results[0].outcome is not Outcome.CONFIRMED:
        raise TransportError(f"the broker did not take the copy: {results[0].detail}")


def break_mail(on: bool) -> str:
    """Make the mail server refuse everything, or heal it."""
    set_switch(BREAK_MAIL, on=on)
    if on:
        return "Mail now fails: place an order, and consumer mail tries it again and again; the overview says so."
    return "Mail works again: what consumer mail has not done goes through at its next try."


def slow_handler(seconds: float) -> str:
    """Make the payments handler take so long for each message; 0 makes it quick again."""
    if not 0 <= seconds <= SLOWEST:
        raise ValueError(f"seconds must be 0 to {SLOWEST:g}, not {seconds:g}")
    set_switch(SLOW, on=seconds > 0, amount=seconds)
    if seconds:
        return f"Payments now take {seconds:g} s each: place some orders and watch when payments.settled follows."
    return "Payments are quick again."


def poison() -> str:
    """Publish a message whose handler kills its own process each time."""
    set_switch(POISON, on=True)
    with transaction.atomic():
        message = publish("demo.poison", {"action": "poison"}, key="demo-poison")
    return (
        f"Message {message.message_id} kills the consumer's process each time it is handled. The supervisor starts "
        f"it again; after {settings.MAX_ATTEMPTS} tries the message is dead, and the others flow all the time. "
        "Look at Workers: the consumer comes back each time."
    )


def cure_poison() -> str:
    """Take the sting out of poison messages: the next try of one succeeds."""
    set_switch(POISON, on=False)
    return "Poison messages are harmless now: redispatch a dead one and it goes through."


def set_traffic(rate: float) -> str:
    """Set how many messages a second the demo's traffic publishes (0 stops it)."""
    if not 0 <= rate <= FASTEST_TRAFFIC:
        raise ValueError(f"rate must be 0 to {FASTEST_TRAFFIC:g} messages a second, not {rate:g}")
    set_switch(TRAFFIC, on=rate > 0, amount=rate)
    return f"Traffic is about {rate:g} messages a second now. Look at the chart on the overview."


def set_switch(name: str, *, on: bool, amount: float = 0) -> None:
    """Store a switch; every process reads it at its next step."""
    Switch.objects.update_or_create(name=name, defaults={"on": on, "amount": amount})


def switch(name: str) -> Switch:
    """The switch as it stands, off if it was never set."""
    return Switch.objects.filter(name=name).first() or Switch(name=name)


def _message(message_id: UUID | str | None) -> Message:
    if message_id is not None:
        try:
            return Message.objects.get(message_id=UUID(str(message_id)))
        except ValueError:
            raise ValueError(f"message id must be a UUID, not {str(message_id)[:40]!r}") from None
    for receipt in Receipt.objects.filter(outcome="processed").order_by("-id")[:20]:
        try:
            id_ = UUID(receipt.message_id)
        except ValueError:  # a foreign id
            continue
        if found := Message.objects.filter(message_id=id_, dispatches__isnull=False).first():
            return found
    raise Message.DoesNotExist("no message was processed yet: wait for the first, or change a price")
