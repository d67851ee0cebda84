"""Many messages in one transaction: each is as it would be alone, and none harms its neighbours."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection, connections, transaction

from dashboard.demo.models import BasketItem
from outbox_core import Reject, RetryLater, publish
from outbox_core.inbox import locks
from outbox_core.inbox.group import Apart, receive_group
from outbox_core.inbox.message import InboxMessage
from outbox_core.inbox.outcomes import Outcome
from outbox_core.inbox.registry import Subscription
from outbox_core.models import Duplicate, FailedAttempt, Handling, Message, Newest, Receipt, Tally
from outbox_core.transports.base import Delivery
from tests.integration import test_receiver
from tests.integration.receiving import WORKER, delivery, letters, subscribed, take, write_letter

pytestmark = pytest.mark.django_db(transaction=True)

HANDLED = Outcome.HANDLED


@pytest.fixture(autouse=True)
def long_back_off(outbox_settings: Callable[..., None]) -> None:
    """No message is due again by itself."""
    outbox_settings(BACKOFF_BASE=1000, BACKOFF_CAP=1000)


def together(subscription: Subscription, given: Sequence[Delivery]) -> list[Outcome | None]:
    return receive_group(given, subscription, WORKER, rng=random.Random(7))


def numbered(count: int, **changes: Any) -> list[Delivery]:
    return [delivery({"n": n}, message_id=f"m-{n}", **changes) for n in range(count)]


def keyed(*places: tuple[str, int]) -> list[Delivery]:
    return [
        delivery(message_id=f"{key}-{place}", headers={"outbox-key": key, "outbox-position": place})
        for key, place in places
    ]


def test_a_group_commits_once_with_all_that_belongs_to_its_messages() -> None:
    seen: list[str] = []

    def handler(message: InboxMessage) -> None:
        write_letter(message)
        publish("test.answered", message.payload)
        seen.append(f"ran {message.payload['n']}")
        transaction.on_commit(lambda: seen.append("committed"))

    with subscribed(handler, group=10) as subscription:
        assert together(subscription, numbered(3)) == [HANDLED] * 3
    assert seen == ["ran 0", "ran 1", "ran 2", *["committed"] * 3]
    assert letters() == Message.objects.count() == Receipt.objects.count() == 3
    assert Tally.objects.filter(kind="handled").values_list("count", flat=True).get() == 3
    assert [str(m.causation_id) for m in Message.objects.order_by("id")] == ["m-0", "m-1", "m-2"]


@pytest.mark.parametrize(
    ("error", "outcome", "failures"),
    [
        (LookupError("no such product"), Outcome.KEPT, 1),
        (Reject("not for us"), Outcome.DEAD, 1),
        (RetryLater(5), Outcome.KEPT, 0),
    ],
)
def test_what_fails_rolls_back_alone(error: Exception, outcome: Outcome, failures: int) -> None:
    def handler(message: InboxMessage) -> None:
        write_letter(message)
        publish("test.answered", {})
        if message.id == "m-1":
            raise error

    with subscribed(handler, group=10) as subscription:
        assert together(subscription, numbered(4)) == [HANDLED, outcome, HANDLED, HANDLED]
    assert letters() == Message.objects.count() == Receipt.objects.count() == 3
    row = Handling.objects.get()
    assert (row.message_id, row.failures) == ("m-1", failures)
    assert FailedAttempt.objects.count() == failures


@pytest.mark.parametrize("broken", test_receiver.BREAKING)
def test_what_a_handler_does_to_the_transaction_harms_none_of_the_group(
    broken: Callable[[InboxMessage], None],
) -> None:
    def handler(message: InboxMessage) -> None:
        (broken if message.id == "m-1" else write_letter)(message)

    with subscribed(handler, group=10) as subscription:
        given = numbered(3)
        try:
            outcomes = together(subscription, given)
        except Apart:  # nothing was committed: each alone
            assert not letters()
            assert not Handling.objects.exists()
            outcomes = [take(subscription, one) for one in given]
    assert outcomes == [HANDLED, Outcome.KEPT, HANDLED]
    assert letters() == 2
    assert Handling.objects.get().failures == 1
    assert not Duplicate.objects.exists()
    assert not connection.in_atomic_block


def test_a_constraint_that_fails_at_the_commit_is_counted_for_no_neighbour() -> None:
    def handler(message: InboxMessage) -> None:
        write_letter(message)
        if message.id == "m-1":
            BasketItem.objects.create(basket_id=10**6, product_id=1, price=1)

    with subscribed(handler, group=10) as subscription:
        given = numbered(3)
        with pytest.raises(Apart):
            together(subscription, given)
        assert not letters()
        assert [take(subscription, one) for one in given] == [HANDLED, Outcome.KEPT, HANDLED]
    assert FailedAttempt.objects.get().foreign_id == "m-1"


def test_a_hook_that_fails_after_the_commit_undoes_nothing() -> None:
    def handler(message: InboxMessage) -> None:
        write_letter(message)
        transaction.on_commit(lambda: 1 // 0)

    with subscribed(handler, group=10) as subscription:
        assert together(subscription, numbered(3)) == [HANDLED] * 3
    assert letters() == 3
    assert not Handling.objects.exists()
    assert not Duplicate.objects.exists()


def test_a_group_ends_before_a_second_copy_and_before_what_runs_alone() -> None:
    first, second = numbered(2)
    again = delivery(message_id="m-0")
    redelivered = delivery(message_id="m-5", redelivered=True)
    with subscribed(write_letter, group=10) as subscription:
        assert together(subscription, [first, second, again]) == [HANDLED, HANDLED, None]
        assert together(subscription, [again, redelivered]) == [Outcome.DUPLICATE, None]
        assert together(subscription, [redelivered, *numbered(2)]) == [Outcome.KEPT, None, None]
    assert letters() == 2
    assert Duplicate.objects.get().cause == "producer"


def test_copies_of_what_was_handled_are_recorded_and_the_rest_goes_on() -> None:
    with subscribed(write_letter, group=10) as subscription:
        take(subscription, numbered(1)[0])
        assert together(subscription, numbered(3)) == [Outcome.DUPLICATE, HANDLED, HANDLED]
    assert letters() == 3


def test_what_cannot_be_read_is_kept_beside_the_others() -> None:
    bad = delivery(message_id="bad", body=b"{")
    with subscribed(write_letter, group=10) as subscription:
        assert together(subscription, [bad, *numbered(2)]) == [Outcome.UNDECODABLE, HANDLED, HANDLED]
    assert Handling.objects.get().message_id == "bad"


def test_the_key_of_an_ordered_consumer_waits_behind_what_failed() -> None:
    def handler(message: InboxMessage) -> None:
        if message.id == "a-1":
            raise LookupError
        write_letter(message)

    with subscribed(handler, group=10, ordered=True) as subscription:
        given = keyed(("a", 1), ("b", 1), ("a", 2), ("b", 2))
        assert together(subscription, given) == [Outcome.KEPT, HANDLED, None, HANDLED]
        assert take(subscription, given[2]) is Outcome.KEPT
    assert Handling.objects.get(message_id="a-2").state == "waiting"
    assert letters() == 2


def test_an_older_message_of_a_key_has_no_effect_beside_a_newer_one() -> None:
    with subscribed(write_letter, group=10, discard_stale=True) as subscription:
        assert together(subscription, keyed(("a", 2), ("a", 1), ("b", 1))) == [
            HANDLED, Outcome.STALE, HANDLED,
        ]  # fmt: skip
    assert letters() == 2
    assert Newest.objects.get(key="a").position == 2


def test_a_message_that_another_process_has_is_busy_for_the_group(pair: str) -> None:
    if pair == "embedded":
        pytest.skip("SQLite has one writer: the group waits for it")
    locked, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            locks.take("default", subscription.consumer, "m-1")
            locked.set()
            go_on.wait(20)
        connections.close_all()

    with subscribed(write_letter, group=10) as subscription:
        other = threading.Thread(target=hold)
        other.start()
        assert locked.wait(20)
        assert together(subscription, numbered(3)) == [HANDLED, Outcome.BUSY, HANDLED]
        go_on.set()
        other.join(20)
    assert letters("m-1") == 0


def test_groups_that_meet_the_same_keys_in_another_order_do_not_wait_for_each_other(pair: str) -> None:
    """Two consumers at once, each with all keys, one from the front and one from the back."""
    rounds, errors = 15, []
    barrier = threading.Barrier(2)

    def consume(backwards: bool) -> None:
        try:
            for n in range(rounds):
                given = keyed(*((f"k-{k}", 2 * n + backwards + 1) for k in range(8)))
                barrier.wait(30)
                together(subscription, given[::-1] if backwards else given)
        except Exception as error:
            errors.append(error)
            barrier.abort()
        finally:
            connections.close_all()

    with subscribed(write_letter, group=10, discard_stale=True) as subscription:
        for k in range(8):  # a first sight of a key is an insert, which no one can lock beforehand
            take(subscription, keyed((f"k-{k}", 0))[0])
        threads = [threading.Thread(target=consume, args=[bool(n)]) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not errors
    assert Receipt.objects.count() == 8 + rounds * 16
    assert set(Newest.objects.values_list("position", flat=True)) == {2 * rounds}
