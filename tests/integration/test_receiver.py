"""One message, once in effect: the happy path, copies, and what a handler may do to its transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction

from dashboard.demo.models import Letter, Product
from outbox_core import context, publish
from outbox_core.inbox.message import InboxMessage
from outbox_core.inbox.outcomes import Outcome
from outbox_core.models import Duplicate, FailedAttempt, Handling, Message, Receipt, Tally
from tests.integration.receiving import delivery, letters, make_due, run_due, subscribed, take, write_letter

pytestmark = pytest.mark.django_db(transaction=True)


def test_effect_receipt_and_outgoing_messages_commit_together() -> None:
    def handler(message: InboxMessage) -> None:
        write_letter(message)
        publish("test.answered", {"to": message.id})
        publish("test.answered", {"to": message.id})

    with subscribed(handler) as subscription:
        given = delivery(correlation_id="journey-1", headers={"outbox-position": 7, "outbox-attempt": 3})
        assert take(subscription, given) is Outcome.HANDLED

    receipt = Receipt.objects.get()
    assert (receipt.consumer, receipt.message_id) == (subscription.consumer, given.message_id)
    assert (receipt.outcome, receipt.attempt, receipt.position) == ("processed", 3, 7)
    assert letters(given.message_id) == 1
    answers = list(Message.objects.order_by("id"))
    assert {(a.correlation_id, a.causation_id) for a in answers} == {("journey-1", given.message_id)}
    assert [a.message_id for a in answers] == [
        context.derived_id(given.message_id or "", subscription.consumer, n) for n in (1, 2)
    ]
    assert not Duplicate.objects.exists()
    assert context.current() is None


def test_nothing_remains_of_a_run_that_fails_but_the_record_of_it() -> None:
    def handler(message: InboxMessage) -> None:
        write_letter(message)
        publish("test.answered", {})
        raise LookupError("no such product")

    with subscribed(handler) as subscription:
        assert take(subscription, delivery({"n": 1})) is Outcome.KEPT

    assert not letters()
    assert not Message.objects.exists()
    assert not Receipt.objects.exists()
    row = Handling.objects.get()
    assert (row.state, row.attempts, row.failures, row.error_class) == ("retrying", 1, 1, "LookupError")
    assert row.error == "no such product"
    failed = FailedAttempt.objects.get()
    assert (failed.consumer, failed.foreign_id, failed.kind) == (
        subscription.consumer,
        row.message_id,
        "transient",
    )
    assert failed.message is None
    assert "test_receiver.py" in failed.detail
    assert Tally.objects.get(kind="handling_failed").destination == subscription.consumer


def test_a_failure_of_our_own_message_names_that_message() -> None:
    with transaction.atomic():
        message = publish("test.said", {})

    def handler(message: InboxMessage) -> None:
        raise LookupError

    with subscribed(handler) as subscription:
        take(subscription, delivery(message_id=str(message.message_id)))
    assert FailedAttempt.objects.get().message_id == message.pk


def test_a_handler_sees_what_the_contract_names() -> None:
    seen: list[InboxMessage] = []
    with subscribed(seen.append) as subscription:
        given = delivery(
            {"price": 25, "exact": 1},
            body=b'{"exact": 12345678901234567890.10, "whole": 90071992547409931}',
            redelivered=False, correlation_id="c", app_id="shop",
            headers={
                "outbox-key": "product-7", "outbox-position": 12, "outbox-attempt": 2, "outbox-causation-id": "b",
                "tenant": "x", "cloudEvents_time": "2026-01-02T03:04:05Z",
            },
        )  # fmt: skip
        assert take(subscription, given) is Outcome.HANDLED
    (m,) = seen
    assert (m.id, m.type, m.key, m.consumer) == (
        given.message_id,
        "test.said",
        "product-7",
        subscription.consumer,
    )
    assert (m.redelivered, m.attempt, m.position, m.run) == (False, 2, 12, 1)
    assert (m.correlation_id, m.causation_id, m.source) == ("c", "b", "shop")
    assert m.headers == {"tenant": "x"}
    assert m.published_at is not None
    assert m.published_at.isoformat() == "2026-01-02T03:04:05+00:00"
    assert m.payload == {"exact": Decimal("12345678901234567890.10"), "whole": 90071992547409931}


def test_the_latency_from_publishing_to_the_commit_is_counted() -> None:
    from outbox_core.clock import database_now

    with subscribed(write_letter) as subscription:
        published = database_now().isoformat()
        take(subscription, delivery(headers={"cloudEvents_time": published}))
        take(subscription, delivery())
    buckets = set(Tally.objects.filter(kind="handled").values_list("bucket", flat=True))
    assert -1 in buckets
    assert len(buckets) == 2
    assert max(buckets) < 14  # it took less than 2^14 ms


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ({}, {"headers": {"outbox-operation": "4", "outbox-attempt": 2}, "redelivered": True}, "operator"),
        ({}, {"headers": {"outbox-attempt": 2}, "redelivered": True}, "resend"),
        ({"headers": {"outbox-attempt": 2}}, {}, "resend"),
        ({}, {"redelivered": True}, "redelivered"),
        ({}, {}, "producer"),
    ],
)
def test_a_second_copy_has_no_effect_and_is_recorded_with_its_cause(
    first: dict[str, Any], second: dict[str, Any], cause: str
) -> None:
    with subscribed(write_letter) as subscription:
        given = delivery(**first)
        assert take(subscription, given) is Outcome.HANDLED
        assert take(subscription, delivery(message_id=given.message_id, **second)) is Outcome.DUPLICATE
    assert letters(given.message_id) == 1
    duplicate = Duplicate.objects.get()
    assert (duplicate.cause, duplicate.same_payload, duplicate.type) == (cause, True, "test.said")
    assert (duplicate.consumer, duplicate.message_id) == (subscription.consumer, given.message_id)
    assert duplicate.gap is not None
    assert 0 <= duplicate.gap.total_seconds() < 60
    assert Tally.objects.get(kind="duplicate").count == 1


def test_a_copy_that_came_while_the_first_was_running_is_a_race() -> None:
    with subscribed(write_letter) as subscription:
        given = delivery()
        take(subscription, given)
        assert take(subscription, given, raced=True) is Outcome.DUPLICATE
    assert Duplicate.objects.get().cause == "race"


def test_the_same_id_with_another_payload_is_shown_as_such() -> None:
    with subscribed(write_letter) as subscription:
        given = delivery({"a": 1})
        take(subscription, given)
        take(subscription, delivery({"a": 2}, message_id=given.message_id))
    duplicate = Duplicate.objects.get()
    assert not duplicate.same_payload
    assert duplicate.digest != Receipt.objects.get().digest


def test_a_resend_whose_first_copy_never_came_is_no_duplicate() -> None:
    with subscribed(write_letter) as subscription:
        assert take(subscription, delivery(headers={"outbox-attempt": 2})) is Outcome.HANDLED
    assert not Duplicate.objects.exists()
    assert Receipt.objects.get().attempt == 2


def test_each_consumer_has_its_own_effect_of_a_message() -> None:
    with subscribed(write_letter) as one, subscribed(write_letter) as other:
        given = delivery()
        assert [take(one, given), take(other, given)] == [Outcome.HANDLED] * 2
    assert letters(given.message_id) == 2
    assert not Duplicate.objects.exists()


def _swallow_integrity_error(message: InboxMessage) -> None:
    write_letter(message)
    Product.objects.create(name="twice", price=1)
    with suppress(IntegrityError):
        Product.objects.create(name="twice", price=1)


def _close(message: InboxMessage) -> None:
    write_letter(message)
    connection.close()


def _close_underneath(message: InboxMessage) -> None:
    write_letter(message)
    connection.connection.close()


def _roll_back(message: InboxMessage) -> None:
    write_letter(message)
    transaction.set_rollback(True)


def _leave_a_block_open(message: InboxMessage) -> None:
    write_letter(message)
    transaction.atomic().__enter__()


def _exit(message: InboxMessage) -> None:
    write_letter(message)
    raise SystemExit(3)


def _raise_without_text(message: InboxMessage) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    write_letter(message)
    raise Silent


BREAKING = [
    _swallow_integrity_error, _close, _close_underneath, _roll_back, _leave_a_block_open, _exit, _raise_without_text,
]  # fmt: skip
"""Handlers that leave their transaction unusable, or raise what is no ordinary error."""


@pytest.mark.parametrize("handler", BREAKING)
def test_what_a_handler_does_to_its_transaction_harms_no_other_message(
    handler: Callable[[InboxMessage], None],
) -> None:
    with subscribed(handler) as broken, subscribed(write_letter) as sound:
        assert take(broken, delivery()) is Outcome.KEPT
        assert not letters()
        assert take(sound, delivery()) is Outcome.HANDLED
        assert take(sound, delivery()) is Outcome.HANDLED
    assert letters() == 2
    row = Handling.objects.get()
    assert (row.consumer, row.state, row.failures) == (broken.consumer, "retrying", 1)
    assert row.error_class
    assert row.error
    assert not connection.in_atomic_block


def test_a_savepoint_keeps_the_rest_of_a_handler() -> None:
    def handler(message: InboxMessage) -> None:
        write_letter(message)
        Product.objects.create(name="twice", price=1)
        try:
            with transaction.atomic():
                Product.objects.create(name="twice", price=1)
        except IntegrityError:
            write_letter(message)

    with subscribed(handler) as subscription:
        assert take(subscription, delivery()) is Outcome.HANDLED
    assert letters() == 2


def test_a_second_interrupt_ends_the_process_and_nothing_is_kept() -> None:
    def handler(message: InboxMessage) -> None:
        write_letter(message)
        raise KeyboardInterrupt

    with subscribed(handler) as subscription, pytest.raises(KeyboardInterrupt):
        take(subscription, delivery())
    assert not letters()
    assert not Handling.objects.exists()
    assert not connection.in_atomic_block


def test_a_hook_that_fails_after_the_commit_undoes_nothing_and_is_no_failure() -> None:
    def fail() -> None:
        raise LookupError("after the commit")

    def handler(message: InboxMessage) -> None:
        write_letter(message)
        transaction.on_commit(fail)

    with subscribed(handler) as subscription:
        assert take(subscription, delivery()) is Outcome.HANDLED
    assert letters() == 1
    assert Receipt.objects.count() == 1
    assert not Handling.objects.exists()
    assert not FailedAttempt.objects.exists()


def test_an_error_of_a_megabyte_with_odd_characters_is_kept_cut() -> None:
    def handler(message: InboxMessage) -> None:
        raise LookupError("a\0b\ud800" + "é" * 1_000_000)

    with subscribed(handler) as subscription:
        assert take(subscription, delivery()) is Outcome.KEPT
    row, failed = Handling.objects.get(), FailedAttempt.objects.get()
    assert 9_000 < len(row.error.encode()) <= 10_000
    assert len(failed.detail.encode()) <= 10_000
    assert row.error.startswith("a\N{SYMBOL FOR NULL}b?")


def test_a_copy_that_finds_the_message_kept_is_a_duplicate() -> None:
    def handler(message: InboxMessage) -> None:
        raise LookupError

    with subscribed(handler) as subscription:
        given = delivery()
        take(subscription, given)
        assert (
            take(subscription, delivery(message_id=given.message_id, redelivered=True)) is Outcome.DUPLICATE
        )
    assert Duplicate.objects.get().cause == "redelivered"
    assert Handling.objects.get().attempts == 1


def test_a_redelivered_message_is_written_down_first_and_run_from_there() -> None:
    with subscribed(write_letter) as subscription:
        given = delivery(redelivered=True)
        assert take(subscription, given) is Outcome.KEPT
        assert not letters()
        row = Handling.objects.get()
        assert (row.state, row.attempts, row.failures) == ("retrying", 0, 0)
        assert run_due(subscription) == [Outcome.HANDLED]
    assert letters(given.message_id) == 1
    assert not Handling.objects.exists()
    assert not Duplicate.objects.exists()
    assert Receipt.objects.get().received_at == row.received_at


def test_copies_that_come_at_one_instant_have_one_effect(pair: str) -> None:
    """Two consumers, each message to both at once; the one that finds it running looks again, as the loop does."""
    ids, count, errors = [f"instant-{n}" for n in range(20)], 2, []
    barrier = threading.Barrier(count)

    def consume(subscription: Any) -> None:
        try:
            for id_ in ids:
                given, raced = delivery(message_id=id_), False
                barrier.wait(20)
                while take(subscription, given, raced=raced) is Outcome.BUSY:
                    raced = True
        except Exception as error:
            errors.append(error)
            barrier.abort()
        finally:
            connections.close_all()

    with subscribed(write_letter) as subscription:
        threads = [threading.Thread(target=consume, args=[subscription]) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not errors
    assert [letters(id_) for id_ in ids] == [1] * len(ids)
    assert Receipt.objects.count() == len(ids)
    assert Duplicate.objects.count() == len(ids)
    assert set(Duplicate.objects.values_list("cause", flat=True)) <= {"race", "producer"}
    assert not Handling.objects.exists()


def test_a_running_message_is_busy_for_another_copy(pair: str) -> None:
    if pair == "embedded":
        pytest.skip("SQLite has one writer: the second copy waits for the first")
    running, go_on = threading.Event(), threading.Event()

    def handler(message: InboxMessage) -> None:
        write_letter(message)
        running.set()
        assert go_on.wait(20)

    def consume() -> None:
        take(subscription, given)
        connections.close_all()

    with subscribed(handler) as subscription:
        given = delivery()
        first = threading.Thread(target=consume)
        first.start()
        assert running.wait(20)
        assert take(subscription, given) is Outcome.BUSY
        assert take(subscription, delivery(message_id=given.message_id, redelivered=True)) is Outcome.BUSY
        go_on.set()
        first.join(20)
        assert take(subscription, given, raced=True) is Outcome.DUPLICATE
    assert letters() == 1
    assert Duplicate.objects.get().cause == "race"


def test_a_lost_session_fails_the_run_and_the_next_try_succeeds(pair: str) -> None:
    if pair == "embedded":
        pytest.skip("SQLite has no sessions to lose")
    lost: list[str] = []

    def handler(message: InboxMessage) -> None:
        write_letter(message)
        if not lost:
            lost.append(message.id)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with subscribed(handler) as subscription:
        assert take(subscription, delivery()) is Outcome.KEPT
        assert Handling.objects.get().error_class in ("OperationalError", "AdminShutdown")
        make_due()
        assert run_due(subscription) == [Outcome.HANDLED]
    assert letters() == 1


def test_the_effects_of_a_letter_are_counted_right() -> None:
    """The measure that the tests above stand on."""
    Letter.objects.create(to="a", subject="b")
    assert (letters("a"), letters("x"), letters()) == (1, 0, 1)
