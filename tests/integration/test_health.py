"""The verdict: the worst thing that is true, in one sentence, and the exit code for a monitor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from outbox_core.clock import ClockTimestamp, database_now
from outbox_core.inbox import registry
from outbox_core.models import Duplicate, Pending, Worker
from outbox_core.operations.health import ready, verdict
from outbox_core.operations.words import duration
from tests.integration import situations
from tests.integration.situations import aside, dead, pending, retrying, worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """This installation subscribes nothing, unless the test does."""
    monkeypatch.setattr(registry, "_subscriptions", {})


def wait(seconds: float) -> None:
    message = pending()
    Pending.objects.filter(pk=message.pk).update(available_at=database_now() - timedelta(seconds=seconds))


def test_without_any_dispatcher_it_says_how_to_start_one() -> None:
    pending()
    v = verdict()
    assert (v.level, v.code, v.link) == ("bad", 2, "workers")
    assert v.headline == "Nothing is being delivered: no dispatcher is running."
    assert (
        v.detail.startswith("1 message waits")
        and "outbox_dispatch" in v.detail
        and "Nothing is lost" in v.detail
    )


def test_a_silent_dispatcher_is_named_with_how_long_it_is_silent() -> None:
    worker(silent=192)
    v = verdict()
    assert (v.level, v.code) == ("bad", 2)
    assert "no dispatcher has been heard from for 3 min 1" in v.headline
    assert "dispatcher-a on web-1, process 4711" in v.detail and "Nothing waits at the moment." in v.detail


def test_all_well() -> None:
    worker()
    v = verdict()
    assert (v.level, v.code, v.headline) == ("ok", 0, "Everything is delivered.")
    pending(), pending()
    assert verdict().headline.startswith("Delivery is on time. 2 messages wait, the oldest for ")
    assert verdict().level == "ok"


def test_behind_names_age_and_limit(outbox_settings: Any) -> None:
    worker()
    wait(252)
    v = verdict()
    assert (v.level, v.code, v.link) == ("bad", 1, "messages")
    assert v.headline.startswith("Delivery is behind: the oldest message has waited 4 min 1")
    assert v.headline.endswith("(limit 1 min).") and v.detail == "1 message waits."
    outbox_settings(BEHIND_AFTER=300)
    assert verdict().level == "ok"


def test_a_scheduled_message_is_not_late() -> None:
    worker()
    pending(delay=86400)
    assert verdict().level == "ok"


def test_dead_messages_need_a_decision() -> None:
    worker()
    dead(), dead(key="k")
    v = verdict()
    assert (v.level, v.code, v.link) == ("warn", 1, "failures")
    assert v.headline == "2 messages could not be delivered and need a decision."
    assert v.detail == "No other message waits behind them."


def test_a_dead_message_that_holds_others_back_is_the_cause_and_named_before_their_age(
    outbox_settings: Any,
) -> None:
    worker()
    outbox_settings(BEHIND_AFTER=0)
    dead(key="k"), aside("k")
    v = verdict()
    assert (v.level, v.code, v.link) == ("bad", 1, "failures")
    assert v.headline == "1 message could not be delivered and needs a decision."
    assert v.detail == "Later messages of the same key wait behind it."


def test_a_key_behind_a_failing_message_is_told_apart_from_delivery_as_a_whole(outbox_settings: Any) -> None:
    worker()
    outbox_settings(BEHIND_AFTER=0)
    retrying(key="k"), aside("k")
    v = verdict()
    assert (v.level, v.code) == ("bad", 1) and v.headline.startswith(
        "Some keys are behind: a message has waited 0."
    )


@pytest.mark.parametrize(
    ("state", "words"), [("down", "not been reachable"), ("blocked", "it blocks its producers")]
)
def test_a_broker_that_is_away_is_bad_with_since_when(state: str, words: str) -> None:
    since = database_now() - timedelta(seconds=75)
    worker(broker=state, broker_detail="Connection refused", broker_since=since)
    wait(70)
    v = verdict()
    assert (v.level, v.code, v.link) == ("bad", 1, "workers")
    assert words in v.headline and "1 min 1" in v.headline
    assert "Connection refused." in v.detail and "none of it counts as a failure" in v.detail


def test_one_of_two_dispatchers_without_broker_is_a_warning() -> None:
    worker()
    worker(name="dispatcher-b", broker="down", broker_since=ClockTimestamp())
    v = verdict()
    assert (v.level, v.code) == ("warn", 0) and "dispatcher-b" in v.headline
    wait(5000)
    assert verdict().headline.startswith("Delivery is behind")


def test_a_dispatcher_that_is_just_connecting_is_no_alarm() -> None:
    worker(broker="connecting", broker_since=ClockTimestamp())
    assert verdict().level == "ok"


def test_no_consumer_is_a_warning_where_one_is_expected() -> None:
    worker()
    registry.subscribe("order.paid", consumer="billing")(lambda message: None)
    v = verdict()
    assert (
        (v.level, v.code) == ("warn", 0) and "no consumer is running" in v.headline and "billing" in v.detail
    )
    worker(kind="consumer", name="consumer-a")
    assert verdict().level == "ok"


def test_a_silent_dispatcher_outweighs_everything() -> None:
    worker(silent=3600)
    dead(key="k")
    wait(5000)
    assert verdict().code == 2


def test_ready_says_whether_the_database_serves() -> None:
    assert ready()
    with connection.schema_editor() as editor:
        editor.alter_db_table(Worker, "outbox_core_worker", "outbox_core_worker_gone")
    try:
        assert not ready()
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Worker, "outbox_core_worker_gone", "outbox_core_worker")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (0.34, "0.3 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (252, "4 min 12 s"),
     (3600, "1 h"), (11100, "3 h 5 min"), (86400, "1 d"), (187_200, "2 d 4 h")],
)  # fmt: skip
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_a_consumer_gave_up_needs_a_person() -> None:
    worker()
    situations.received(situations.dispatched(), "undecodable")
    v = verdict()
    assert (v.level, v.code) == ("warn", 1)
    assert v.headline == "1 message was delivered, but a consumer gave it up."
    situations.received(situations.dispatched(), "waiting")
    assert verdict().level == "bad"


def test_what_a_consumer_has_tried_for_a_moment_is_told_and_no_alarm() -> None:
    worker()
    situations.received(situations.dispatched(), "retrying", ago=50)
    situations.received(situations.dispatched(), "waiting")
    v = verdict()
    assert (v.level, v.code, v.link) == ("ok", 0, "overview")
    assert v.headline == "Everything is delivered."
    assert v.detail == "2 messages are tried again at consumers."


def test_a_consumer_that_fails_for_longer_than_the_limit_is_behind() -> None:
    worker()
    situations.received(situations.dispatched(), "retrying", ago=252, error="no stock\n  stock.py:7")
    situations.received(situations.dispatched(), "retrying", consumer="letters", ago=70)
    v = verdict()
    assert (v.level, v.code, v.link) == ("warn", 1, "overview")
    assert v.headline.startswith("Consumer reports has failed at a message for 4 min 1")
    assert v.headline.endswith("(limit 1 min).")
    assert v.detail == "2 messages are tried again at consumers: no stock."


def test_a_handler_that_asked_for_a_later_run_has_not_failed() -> None:
    worker()
    situations.received(situations.dispatched(), "retrying", ago=5000, failures=0)
    assert verdict().code == 0


def test_a_destination_that_takes_nothing_is_named_with_what_its_dispatcher_says() -> None:
    destination = situations.stranded(3)[0].destination
    worker(problems={f"{destination} · order.paid": "One is tried at a time, the next in 4 s."})
    v = verdict()
    assert (v.level, v.code) == ("warn", 0)
    assert v.headline == f"{destination} takes no order.paid: 3 messages wait for it."
    assert v.detail.startswith("One is tried at a time, the next in 4 s.")


def test_one_that_has_taken_nothing_for_long_is_an_alarm(outbox_settings: Any) -> None:
    outbox_settings(BEHIND_AFTER=0)
    worker()
    situations.stranded(1)
    v = verdict()
    assert (v.level, v.code) == ("bad", 1)
    assert "takes no order.paid" in v.headline


def test_what_is_wrong_elsewhere_is_named_too() -> None:
    worker()
    dead()
    for _ in range(2):
        situations.received(situations.dispatched(), "dead")
    v = verdict()
    assert v.headline == "1 message could not be delivered and needs a decision."
    assert v.detail == (
        "No other message waits behind it. Also: 2 messages were delivered, but a consumer gave them up."
    )


def test_a_copy_with_another_payload_is_an_alarm_while_it_is_news() -> None:
    worker()
    known = {"consumer": "c", "cause": "producer", "same_payload": False, "digest": "d"}
    Duplicate.objects.create(message_id="old", at=database_now() - timedelta(hours=2), **known)
    assert verdict().level == "ok"
    Duplicate.objects.create(message_id="new", **known)
    v = verdict()
    assert (v.level, v.code, v.link) == ("warn", 0, "overview")
    assert v.headline == "1 duplicate in the last hour came with another payload than the first copy."
