"""Late confirms: what a dispatcher that lost its lease still learns, and what it may not undo."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from outbox_core.clock import database_now
from outbox_core.models import Dispatch, FailedAttempt, Lease, Message, Parked, Pending
from outbox_core.operations.verbs import act
from outbox_core.outbox import leases, queue
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.late import record_late
from outbox_core.outbox.queue import START, Row
from outbox_core.sql import Dialect, exclusive
from outbox_core.transports.base import Outcome
from tests.integration.situations import ANA, own, pending

pytestmark = pytest.mark.django_db(transaction=True)


def read(message: Message) -> Row:
    db = Dialect("default")
    (row,) = queue.read(db, dict.fromkeys(range(64), START), [], db.now(), 10)
    assert row.id == message.pk
    return row


def sending(message: Message, name: str) -> Row:
    """A dispatcher has the message in flight."""
    row = read(message)
    own(name, [message])
    return row


def bury(name: str) -> None:
    """Its lease runs out, and someone notices."""
    Lease.objects.filter(name=name).update(until=database_now() - timedelta(seconds=1))
    with exclusive("default") as db:
        leases.bury(db, Lease.objects.get(name=name))


def confirm_late(row: Row) -> None:
    answers = [Answer(row, Outcome.CONFIRMED, database_now())]
    record_late("default", "late", answers, random.Random(1))
    assert answers == []


def redispatch(message: Message) -> Pending:
    act("redispatch", message.pk, actor=ANA, reason="r")
    return Pending.objects.get(pk=message.pk)


def test_a_redispatch_counts_on_from_the_last_attempt_not_from_the_last_confirm() -> None:
    message = pending(key="k")
    row = sending(message, "stalled")
    bury("stalled")
    Pending.objects.filter(pk=message.pk).update(attempts=3, failures=2)
    act("discard", message.pk, actor=ANA, reason="r")
    FailedAttempt.objects.create(
        message=message, worker="w", attempt=3, error_class="E", detail="", fingerprint="", kind="permanent"
    )
    confirm_late(row)
    assert not Parked.objects.exists()
    assert Dispatch.objects.get().attempt == 1
    assert redispatch(message).attempts == 3


def test_the_attempt_that_another_has_open_is_not_given_out_again() -> None:
    message = pending(key="k")
    row = sending(message, "stalled")
    bury("stalled")
    sending(message, "heir")
    confirm_late(row)
    assert not Pending.objects.exists()
    bury("heir")  # it had sent attempt 2, or not
    assert redispatch(message).attempts == 2
    maybe = FailedAttempt.objects.order_by("attempt").values_list("attempt", "worker", "kind")
    assert list(maybe) == [(1, "stalled", "unknown"), (2, "heir", "unknown")]


def test_a_late_confirm_leaves_a_redispatch_alone_that_its_owner_is_sending() -> None:
    message = pending(key="k")
    row = sending(message, "stalled")
    bury("stalled")
    act("discard", message.pk, actor=ANA, reason="r")
    again = redispatch(message)
    own("heir", [message])
    confirm_late(row)
    assert Pending.objects.get().attempts == again.attempts  # else the heir's own answer would not count


def test_a_message_that_came_back_late_has_no_failure_counted() -> None:
    """A failure is an opinion: it counts under the own lease only, and this one is gone."""
    message = pending(key="k")
    row = sending(message, "stalled")
    bury("stalled")
    row = read(message)
    answers = [Answer(row, Outcome.RETURNED, database_now(), "Unroutable", "no queue is bound")]
    record_late("default", "late", answers, random.Random(1))
    assert answers == []
    waiting = Pending.objects.get()
    assert (waiting.failures, waiting.attempts) == (0, 1)
    assert FailedAttempt.objects.get().error_class == leases.MAYBE_SENT
