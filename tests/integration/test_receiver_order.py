"""`ordered` and `discard_stale`: what is late in its key waits, or has no effect."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connections, transaction

from dashboard.demo.models import Letter
from outbox_core.inbox import retries
from outbox_core.inbox.message import InboxMessage
from outbox_core.inbox.outcomes import Outcome
from outbox_core.models import Handling, Newest, Receipt
from outbox_core.transports.base import Delivery
from tests.integration.receiving import delivery, letters, make_due, run_due, subscribed, take, write_letter

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def long_back_off(outbox_settings: Callable[..., None]) -> None:
    """No message is due again before a test lets it."""
    outbox_settings(BACKOFF_BASE=1000, BACKOFF_CAP=1000)


def keyed(position: int | None, key: str = "product-7", source: str = "shop") -> Delivery:
    headers = {"outbox-key": key, "cloudEvents_source": source}
    return delivery(headers=headers if position is None else {**headers, "outbox-position": position})


def test_a_message_older_than_the_newest_one_applied_has_no_effect() -> None:
    with subscribed(write_letter, discard_stale=True) as subscription:
        newer, older = keyed(20), keyed(10)
        assert take(subscription, newer) is Outcome.HANDLED
        assert take(subscription, older) is Outcome.STALE
        assert take(subscription, keyed(30)) is Outcome.HANDLED
        assert take(subscription, keyed(5, key="product-8")) is Outcome.HANDLED
        assert take(subscription, keyed(5, source="other")) is Outcome.HANDLED
        assert take(subscription, keyed(None)) is Outcome.HANDLED
        assert take(subscription, keyed(1, key="")) is Outcome.HANDLED
        assert take(subscription, older) is Outcome.DUPLICATE
    assert letters(older.message_id) == 0
    assert Receipt.objects.get(message_id=older.message_id).outcome == "stale"
    assert Newest.objects.get(key="product-7", source="shop").position == 30


def test_without_discard_stale_an_older_message_is_handled() -> None:
    with subscribed(write_letter) as subscription:
        assert [take(subscription, keyed(20)), take(subscription, keyed(10))] == [Outcome.HANDLED] * 2
    assert not Newest.objects.exists()


def test_a_run_that_fails_does_not_make_older_ones_stale() -> None:
    def fail_newer(message: InboxMessage) -> None:
        if message.position == 20 and message.run == 1:
            raise LookupError
        write_letter(message)

    with subscribed(fail_newer, discard_stale=True) as subscription:
        assert take(subscription, keyed(20)) is Outcome.KEPT
        assert take(subscription, keyed(10)) is Outcome.HANDLED
        make_due()
        assert run_due(subscription) == [Outcome.HANDLED]
    assert letters() == 2


def test_a_retry_that_was_overtaken_is_stale() -> None:
    def fail_once(message: InboxMessage) -> None:
        if message.position == 10:
            raise LookupError
        write_letter(message)

    with subscribed(fail_once, discard_stale=True) as subscription:
        assert take(subscription, keyed(10)) is Outcome.KEPT
        assert take(subscription, keyed(20)) is Outcome.HANDLED
        make_due()
        assert run_due(subscription) == [Outcome.STALE]
    assert not Handling.objects.exists()
    assert set(Receipt.objects.values_list("outcome", flat=True)) == {"processed", "stale"}


def test_of_two_that_run_at_once_the_older_one_cannot_win() -> None:
    """The newer one runs first and long; the older one, in another session, sees it or waits for it."""
    running, failed = threading.Event(), []

    def slow_if_new(message: InboxMessage) -> None:
        Letter.objects.update_or_create(to="price", defaults={"subject": str(message.position)})
        if message.position == 20:
            running.set()
            other.join(0.5)

    def older() -> None:
        try:
            assert running.wait(20)
            outcomes.append(take(subscription, keyed(10)))
        except Exception as error:
            failed.append(error)
        finally:
            connections.close_all()

    outcomes: list[Outcome] = []
    other = threading.Thread(target=older)
    with subscribed(slow_if_new, discard_stale=True) as subscription:
        other.start()
        assert take(subscription, keyed(20)) is Outcome.HANDLED
        other.join(40)
    assert not failed
    assert outcomes == [Outcome.STALE]
    assert Letter.objects.get(to="price").subject == "20"


def fail_first_run_of_one(message: InboxMessage) -> None:
    if message.payload["n"] == 1 and message.run == 1:
        raise LookupError
    Letter.objects.create(to=message.key, subject=str(message.payload["n"]))


def numbered(n: int, key: str = "k", **changes: bool) -> Delivery:
    return delivery({"n": n}, headers={"outbox-key": key}, **changes)


def effects(key: str = "k") -> list[str]:
    return list(Letter.objects.filter(to=key).order_by("id").values_list("subject", flat=True))


def test_a_failing_message_holds_back_its_key_and_no_other() -> None:
    with subscribed(fail_first_run_of_one, ordered=True) as subscription:
        assert take(subscription, numbered(1)) is Outcome.KEPT
        assert [take(subscription, numbered(n)) for n in (2, 3)] == [Outcome.KEPT] * 2
        assert take(subscription, numbered(1, key="")) is Outcome.KEPT
        assert take(subscription, numbered(9, key="other")) is Outcome.HANDLED
        assert take(subscription, numbered(8, key="")) is Outcome.HANDLED
        states = list(Handling.objects.filter(key="k").order_by("id").values_list("state", flat=True))
        assert states == ["retrying", "waiting", "waiting"]
        make_due(key="k")
        assert run_due(subscription) == [Outcome.HANDLED]  # 1; 2 is promoted now
        assert take(subscription, numbered(4)) is Outcome.KEPT
        outcomes = [o for _ in range(3) for o in run_due(subscription)]
        assert outcomes == [Outcome.HANDLED] * 3
        assert take(subscription, numbered(5)) is Outcome.HANDLED
    assert effects() == ["1", "2", "3", "4", "5"]
    assert effects("other") == ["9"]


def test_redelivered_messages_of_one_key_keep_their_order() -> None:
    with subscribed(fail_first_run_of_one, ordered=True) as subscription:
        assert [take(subscription, numbered(n, redelivered=True)) for n in (1, 2, 3)] == [Outcome.KEPT] * 3
        for _ in range(6):
            run_due(subscription)
            make_due()
    assert effects() == ["1", "2", "3"]


@pytest.mark.parametrize("on_dead", ["block", "skip"])
def test_a_dead_message_blocks_its_key_or_is_skipped(
    on_dead: str, outbox_settings: Callable[..., None]
) -> None:
    outbox_settings(MAX_ATTEMPTS=1, ON_DEAD=on_dead)
    with subscribed(fail_first_run_of_one, ordered=True) as subscription:
        assert take(subscription, numbered(1)) is Outcome.DEAD
        take(subscription, numbered(2))
        run_due(subscription)
        assert effects() == ([] if on_dead == "block" else ["2"])
        with transaction.atomic():
            retries.retry("default", Handling.objects.get(state="dead").pk)
        for _ in range(3):
            run_due(subscription)
    assert effects() == (["1", "2"] if on_dead == "block" else ["2", "1"])


def test_a_discard_lets_the_key_go_on(outbox_settings: Callable[..., None]) -> None:
    outbox_settings(MAX_ATTEMPTS=1)
    with subscribed(fail_first_run_of_one, ordered=True) as subscription:
        take(subscription, numbered(1))
        take(subscription, numbered(2))
        with transaction.atomic():
            retries.discard("default", Handling.objects.get(state="dead").pk)
        assert run_due(subscription) == [Outcome.HANDLED]
    assert effects() == ["2"]


def test_an_ordered_consumer_has_a_queue_with_a_single_active_consumer() -> None:
    with subscribed(write_letter, ordered=True) as ordered, subscribed(write_letter, prefetch=5) as plain:
        assert ordered.queue.single_active
        assert (plain.queue.single_active, plain.queue.prefetch) == (False, 5)
