"""What fails is run again from the table, backs off, and ends dead where a person can see and revive it."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import transaction

from outbox_core import Reject, RetryLater
from outbox_core.clock import database_now
from outbox_core.errors import StateChanged
from outbox_core.inbox import retries
from outbox_core.inbox.message import InboxMessage
from outbox_core.inbox.outcomes import Outcome
from outbox_core.models import Duplicate, FailedAttempt, Handling, Receipt, Tally
from tests.integration.receiving import (
    WORKER,
    delivery,
    letters,
    make_due,
    run_due,
    subscribed,
    take,
    write_letter,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def long_back_off(outbox_settings: Callable[..., None]) -> None:
    """No message is due again before a test lets it."""
    outbox_settings(BACKOFF_BASE=1000, BACKOFF_CAP=1000)


def fail(message: InboxMessage) -> None:
    write_letter(message)
    raise LookupError(f"run {message.run}")


def test_a_message_that_always_fails_is_dead_after_max_attempts(outbox_settings: Callable[..., None]) -> None:
    outbox_settings(MAX_ATTEMPTS=3)
    with subscribed(fail) as subscription:
        given = delivery()
        outcomes = [take(subscription, given)]
        for _ in range(2):
            assert run_due(subscription) == []  # not before its time
            make_due()
            outcomes += run_due(subscription)
        assert outcomes == [Outcome.KEPT, Outcome.KEPT, Outcome.DEAD]
        make_due()
        assert run_due(subscription) == []
    row = Handling.objects.get()
    assert (row.state, row.attempts, row.failures, row.available_at) == ("dead", 3, 3, None)
    assert row.ended_at is not None and row.ended_at > row.received_at
    assert (row.error_class, row.error) == ("LookupError", "run 3")
    assert list(FailedAttempt.objects.order_by("id").values_list("attempt", flat=True)) == [1, 2, 3]
    assert len(set(FailedAttempt.objects.values_list("fingerprint", flat=True))) == 1
    assert Tally.objects.get(kind="handling_dead").count == 1
    assert not letters()


def test_the_back_off_is_drawn_between_nothing_and_its_ceiling(outbox_settings: Callable[..., None]) -> None:
    outbox_settings(BACKOFF_BASE=100, BACKOFF_CAP=150)
    pauses = []
    with subscribed(fail) as subscription:
        for seed in range(20):
            before = database_now()
            take(subscription, delivery(message_id=f"m-{seed}"), rng=random.Random(seed))
            row = Handling.objects.get(message_id=f"m-{seed}")
            assert row.available_at is not None
            pauses.append((row.available_at - before).total_seconds())
        assert all(0 <= pause <= 101 for pause in pauses)
        assert max(pauses) - min(pauses) > 30  # jitter
        make_due(message_id="m-0")
        before = database_now()
        run_due(subscription)
        row = Handling.objects.get(message_id="m-0")
        assert row.available_at is not None
        assert row.available_at - before <= timedelta(seconds=151)  # the cap, not 200


def test_a_message_that_heals_leaves_no_row_but_its_history() -> None:
    def heal(message: InboxMessage) -> None:
        if message.run == 1:
            fail(message)
        write_letter(message)

    with subscribed(heal) as subscription:
        take(subscription, delivery())
        make_due()
        assert run_due(subscription) == [Outcome.HANDLED]
    assert letters() == 1
    assert not Handling.objects.exists()
    assert FailedAttempt.objects.count() == 1
    assert Receipt.objects.get().outcome == "processed"


def test_retry_later_is_no_failure_however_often(outbox_settings: Callable[..., None]) -> None:
    outbox_settings(MAX_ATTEMPTS=2)

    def later(message: InboxMessage) -> None:
        write_letter(message)
        raise RetryLater(timedelta(seconds=30))

    with subscribed(later) as subscription:
        before = database_now()
        outcomes = [take(subscription, delivery())]
        for _ in range(4):
            row = Handling.objects.get()
            assert row.available_at is not None
            assert 29 < (row.available_at - before).total_seconds() < 60
            make_due()
            outcomes += run_due(subscription)
    assert outcomes == [Outcome.KEPT] * 5
    row = Handling.objects.get()
    assert (row.state, row.attempts, row.failures) == ("retrying", 5, 0)
    assert not FailedAttempt.objects.exists()
    assert not letters()


def test_reject_is_dead_at_once_with_its_reason() -> None:
    def reject(message: InboxMessage) -> None:
        write_letter(message)
        raise Reject("the account is closed")

    with subscribed(reject) as subscription:
        assert take(subscription, delivery()) is Outcome.DEAD
    row = Handling.objects.get()
    assert (row.state, row.error_class, row.error) == ("dead", "Reject", "the account is closed")
    assert FailedAttempt.objects.get().kind == "permanent"
    assert not Receipt.objects.exists()
    assert not letters()


def test_a_message_whose_runs_never_end_is_dead_after_max_attempts(
    outbox_settings: Callable[..., None],
) -> None:
    """`begin` without an end is what a process leaves that its message killed."""
    outbox_settings(MAX_ATTEMPTS=3)
    with subscribed(write_letter) as subscription:
        take(subscription, delivery(redelivered=True))
        (id_,) = Handling.objects.values_list("id", flat=True)
        for attempt in (1, 2, 3):
            make_due()
            row = retries.begin("default", id_, subscription, WORKER)
            assert row is not None
            assert (row.state, row.attempts, row.error_class) == ("retrying", attempt, "Unfinished")
            assert row.available_at is not None
            assert row.available_at > database_now()
        make_due()
        assert run_due(subscription) == [Outcome.DEAD]
    row = Handling.objects.get()
    assert (row.state, row.failures, row.error_class) == ("dead", 3, "ProcessDied")
    assert list(FailedAttempt.objects.values_list("error_class", "kind")) == [("ProcessDied", "unknown")] * 3
    assert not letters()


def test_a_copy_that_an_operator_sent_revives_what_was_given_up(outbox_settings: Callable[..., None]) -> None:
    outbox_settings(MAX_ATTEMPTS=1)

    def heal(message: InboxMessage) -> None:
        if message.attempt == 1:
            fail(message)
        write_letter(message)

    with subscribed(heal) as subscription:
        given = delivery()
        assert take(subscription, given) is Outcome.DEAD
        copy = delivery(message_id=given.message_id, headers={"outbox-attempt": 2, "outbox-operation": "9"})
        assert take(subscription, copy) is Outcome.KEPT
        assert run_due(subscription) == [Outcome.HANDLED]
        assert take(subscription, copy) is Outcome.DUPLICATE
    assert letters(given.message_id) == 1
    assert Duplicate.objects.get().cause == "operator"


def test_a_retry_by_a_person_begins_anew(outbox_settings: Callable[..., None]) -> None:
    outbox_settings(MAX_ATTEMPTS=1)
    with subscribed(fail) as subscription:
        take(subscription, delivery())
        with transaction.atomic():
            row = retries.retry("default", Handling.objects.get().pk)
        assert (row.state, row.failures) == ("retrying", 0)
        assert run_due(subscription) == [Outcome.DEAD]
    assert Handling.objects.get().attempts == 2


def test_a_discard_leaves_a_receipt_that_makes_later_copies_duplicates(
    outbox_settings: Callable[..., None],
) -> None:
    outbox_settings(MAX_ATTEMPTS=1)
    with subscribed(fail) as subscription:
        given = delivery(headers={"outbox-attempt": 2})
        take(subscription, given)
        with transaction.atomic():
            receipt = retries.discard("default", Handling.objects.get().pk)
        assert (receipt.outcome, receipt.attempt, receipt.message_id) == ("rejected", 2, given.message_id)
        assert not Handling.objects.exists()
        assert take(subscription, given) is Outcome.DUPLICATE
    with transaction.atomic(), pytest.raises(Handling.DoesNotExist):
        retries.discard("default", 1)


def test_a_person_cannot_touch_a_message_while_it_runs(pair: str) -> None:
    if pair == "embedded":
        pytest.skip("SQLite has one writer: the person waits until the run has ended")
    import threading

    from django.db import connections

    refused: list[StateChanged] = []

    def other_session(id_: int) -> None:
        try:
            with transaction.atomic():
                retries.discard("default", id_)
        except StateChanged as error:
            refused.append(error)
        finally:
            connections.close_all()

    def meddle(message: InboxMessage) -> None:
        write_letter(message)
        thread = threading.Thread(target=other_session, args=[Handling.objects.get().pk])
        thread.start()
        thread.join(20)

    with subscribed(meddle) as subscription:
        take(subscription, delivery(redelivered=True))
        assert run_due(subscription) == [Outcome.HANDLED]
    assert [error.actual_state for error in refused] == ["retrying"]
    assert letters() == 1


def test_a_kept_message_that_is_running_elsewhere_is_left_alone(pair: str) -> None:
    if pair == "embedded":
        pytest.skip("SQLite has one writer")
    from django.db import connection

    from outbox_core.inbox import locks

    with subscribed(write_letter) as subscription:
        take(subscription, delivery(redelivered=True))
        row = Handling.objects.get()
        other = connection.copy()
        slot = locks._slot("message", row.consumer, row.message_id or "")
        try:
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_lock(%s)", [slot])
                assert run_due(subscription) == [Outcome.GONE]
                assert Handling.objects.get().attempts == 0
                cursor.execute("SELECT pg_advisory_unlock(%s)", [slot])
        finally:
            other.close()
        assert run_due(subscription) == [Outcome.HANDLED]
    assert letters() == 1
