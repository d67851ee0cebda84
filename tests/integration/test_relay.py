"""The relay: what is pending reaches the broker once, in order per key; what cannot says why."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from outbox_core import Outgoing, publish, publish_many
from outbox_core.clock import database_now
from outbox_core.models import Dispatch, FailedAttempt, Lease, Message, Parked, Partition, Pending, Tally
from outbox_core.outbox import leases
from outbox_core.sql import exclusive
from tests.integration.relaying import (
    alone,
    arrivals,
    bind,
    copies,
    first_copies,
    known_ids,
    positions_by_key,
    publish_numbered,
    relay,
    settled,
)  # fmt: skip
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)

Spawn = Callable[..., Process]


def test_what_is_pending_arrives_and_is_settled(exchange: str) -> None:
    queue = bind(exchange, "shop.#")
    with transaction.atomic():
        message = publish(
            "shop.sold",
            {"total": "12.50"},
            key="order-7",
            headers={"tenant": "a", "n": 3},
            correlation_id="c-1",
        )
    assert relay() == 1
    (delivery,) = arrivals(queue, 1)
    assert delivery.body == b'{"total":"12.50"}'
    assert delivery.message_id == str(message.message_id)
    assert (delivery.type, delivery.correlation_id) == ("shop.sold", "c-1")
    h = delivery.headers
    assert (h["tenant"], h["n"], h["outbox-key"], h["outbox-position"]) == ("a", 3, "order-7", message.id)
    assert (h["outbox-attempt"], h["outbox-version"]) == (1, 1)
    assert h["cloudEvents_id"] == str(message.message_id)
    assert not {"outbox-late", "outbox-operation"} & set(h)
    assert settled()
    dispatch = Dispatch.objects.get()
    assert (dispatch.message_id, dispatch.attempt, dispatch.position, dispatch.cause) == (
        message.id,
        1,
        message.id,
        "first",
    )
    assert alone()
    assert not Partition.objects.exclude(lease=None).exists()


def test_a_destination_leads_to_another_routing_key(exchange: str) -> None:
    queue = bind(exchange, "elsewhere")
    with transaction.atomic():
        publish("shop.sold", 1, destination=f"{exchange}/elsewhere")
        publish("shop.sold", 2, destination=f"/{queue.name}")
    assert relay() == 2
    assert sorted(d.body for d in arrivals(queue, 2)) == [b"1", b"2"]


@pytest.mark.parametrize("payload", [None, {}, [], ""])
def test_empty_payloads_are_messages_like_others(exchange: str, payload: object) -> None:
    queue = bind(exchange)
    with transaction.atomic():
        publish("t", payload)
    assert relay() == 1
    assert len(arrivals(queue, 1)) == 1


def test_messages_of_a_key_arrive_in_order_and_each_once(exchange: str) -> None:
    queue = bind(exchange)
    publish_numbered(1500, keys=7)
    publish_numbered(200)
    assert relay() == 1700
    found = arrivals(queue, 1700)
    assert set(copies(found).values()) == {1}
    for positions in positions_by_key(d for d in found if d.headers.get("outbox-key")).values():
        assert positions == sorted(positions)


def test_one_hot_key_is_relayed_in_order(exchange: str) -> None:
    queue = bind(exchange)
    publish_numbered(1200, keys=1)
    assert relay() == 1200
    assert [d.body for d in arrivals(queue, 1200)] == [
        m.payload.encode() for m in Message.objects.order_by("id")
    ]
    assert Dispatch.objects.count() == 1200


def test_a_type_that_no_queue_is_bound_to_backs_off_and_ends_dead(
    exchange: str, outbox_settings: Any
) -> None:
    outbox_settings(MAX_ATTEMPTS=3, BACKOFF_BASE=0.01)
    bind(exchange, "shop.#")
    with transaction.atomic():
        dead = publish("nobody.listens", 1, key="k")
        publish("shop.sold", 2, key="k")
    relay()
    parked = Parked.objects.get()
    assert (parked.message_id, parked.state, parked.holds, parked.failures) == (dead.id, "dead", True, 3)
    assert parked.error_class == "Unroutable"
    assert "nobody.listens" in parked.error
    assert exchange in parked.error
    assert list(FailedAttempt.objects.values_list("attempt", flat=True)) == [1, 2, 3]
    assert Pending.objects.get().attempts == 0  # the next of its key waits behind it
    assert not Dispatch.objects.exists()


def test_with_on_dead_skip_the_key_goes_on(exchange: str, outbox_settings: Any) -> None:
    outbox_settings(MAX_ATTEMPTS=1, ON_DEAD="skip")
    queue = bind(exchange, "shop.#")
    with transaction.atomic():
        publish("nobody.listens", 1, key="k")
        publish("shop.sold", 2, key="k")
    assert relay() == 1
    assert len(arrivals(queue, 1)) == 1
    assert not Parked.objects.get().holds


def test_with_unroutable_accept_it_counts_as_sent_and_says_so(exchange: str, outbox_settings: Any) -> None:
    outbox_settings(UNROUTABLE="accept")
    bind(exchange, "shop.#")
    with transaction.atomic():
        publish("nobody.listens", 1)
    assert relay() == 1
    assert Dispatch.objects.get().returned


def test_a_missing_exchange_fails_that_message_alone(exchange: str, outbox_settings: Any) -> None:
    outbox_settings(MAX_ATTEMPTS=1)
    queue = bind(exchange, "shop.#")
    with transaction.atomic():
        publish("shop.sold", 0, destination=f"{exchange}-missing")
    publish_numbered(50)
    assert relay() == 50
    assert len(arrivals(queue, 50)) == 50
    parked = Parked.objects.get()
    assert parked.error_class == "ExchangeNotFound"
    assert f"{exchange}-missing" in parked.error
    assert "NOT_FOUND" in parked.error or "no exchange" in parked.error


def test_a_failing_message_holds_back_its_key_and_no_other(exchange: str, outbox_settings: Any) -> None:
    outbox_settings(BACKOFF_BASE=60, BACKOFF_CAP=60)
    queue = bind(exchange, "shop.#")
    with transaction.atomic():
        publish("nobody.listens", 1, key="a")
        publish_many(Outgoing("shop.sold", n, key="a") for n in range(3))
        publish_many(Outgoing("shop.sold", n, key="b") for n in range(3))
    assert relay() == 3
    assert {d.headers["outbox-key"] for d in arrivals(queue, 3)} == {"b"}
    failing = Pending.objects.get(failures=1)
    assert failing.available_at is not None
    assert database_now() < failing.available_at <= database_now() + timedelta(seconds=60)


def test_a_delayed_message_goes_at_its_time_and_not_before(
    exchange: str, spawn: Spawn, wait_until: Any
) -> None:
    queue = bind(exchange)
    with transaction.atomic():
        late = publish("later", 1, delay=3600)
        soon = publish("soon", 1, delay=1.5)
    assert relay() == 0
    spawn("outbox_dispatch")
    wait_until(lambda: Dispatch.objects.filter(message=soon.id).exists(), 15)
    dispatch = Dispatch.objects.get()
    assert dispatch.at - soon.created_at >= timedelta(seconds=1.5)
    assert dispatch.position > late.id  # it took its place when it fell due
    assert Pending.objects.get().scheduled
    assert len(arrivals(queue, 1)) == 1


def test_a_message_that_commits_late_with_a_lower_id_is_relayed(
    exchange: str, spawn: Spawn, wait_until: Any
) -> None:
    import threading

    from django.db import connection

    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer: no transaction commits beside another")
    queue = bind(exchange)
    spawn("outbox_dispatch")
    open_, may_commit = threading.Event(), threading.Event()

    def slow() -> None:
        try:
            with transaction.atomic():
                publish("slow", 1, key="k")
                open_.set()
                may_commit.wait(20)
        finally:
            connection.close()

    thread = threading.Thread(target=slow)
    thread.start()
    open_.wait(10)
    with transaction.atomic():
        publish("quick", 1, key="k")
    wait_until(lambda: Dispatch.objects.count() == 1, 15)
    may_commit.set()
    thread.join()
    wait_until(lambda: Dispatch.objects.count() == 2, 15)
    assert [d.type for d in arrivals(queue, 2)] == ["quick", "slow"]


def test_a_dispatcher_wakes_up_for_a_commit(
    exchange: str, spawn: Spawn, wait_until: Any, outbox_settings: Any
) -> None:
    outbox_settings(POLL_INTERVAL=30)
    bind(exchange)
    spawn("outbox_dispatch")
    wait_until(lambda: Partition.objects.exclude(lease=None).count() == 64, 15)
    publish_numbered(1)
    wait_until(settled, 10)  # far below the poll interval


def test_a_dispatcher_leaves_on_sigterm_and_gives_everything_back(
    exchange: str, spawn: Spawn, wait_until: Any
) -> None:
    bind(exchange)
    process = spawn("outbox_dispatch")
    wait_until(lambda: Partition.objects.exclude(lease=None).count() == 64, 15)
    assert process.end(10) == 0
    assert alone()
    assert not Partition.objects.exclude(lease=None).exists()


def test_two_dispatchers_share_the_partitions_and_send_each_message_once(
    exchange: str, spawn: Spawn, wait_until: Any, scale: Callable[[int], int]
) -> None:
    count = max(1000, scale(5000))
    queue = bind(exchange)
    for name in "ab":
        spawn("outbox_dispatch", "--name", name)
    wait_until(
        lambda: sorted(
            Partition.objects.filter(lease=token).count() for token in Lease.objects.values_list("token", flat=True)
        ) == [32, 32],
        20,
    )  # fmt: skip
    publish_numbered(count, keys=50)
    wait_until(settled, 120)
    found = arrivals(queue, count, 60)
    assert len(found) == Dispatch.objects.count() == count
    assert {d.worker for d in Dispatch.objects.all()} == {"a", "b"}
    for positions in positions_by_key(found).values():
        assert positions == sorted(positions)


def test_partitions_of_a_silent_dispatcher_are_taken_over_and_what_was_in_flight_was_maybe_sent(
    exchange: str, outbox_settings: Any
) -> None:
    queue = bind(exchange)
    publish_numbered(3, keys=1)
    first = Message.objects.earliest("id")
    token = leases.join("default", "gone")
    Partition.objects.update(lease=token)
    with exclusive("default") as db:
        leases.lock_own(db, token)
        leases.renew(db, token, [first.id])
    Lease.objects.filter(token=token).update(until=database_now() - timedelta(seconds=1))
    assert relay() == 3
    found = arrivals(queue, 3)
    assert [d.headers["outbox-attempt"] for d in found] == [2, 1, 1]
    maybe = FailedAttempt.objects.get()
    assert (maybe.message_id, maybe.kind, maybe.error_class, maybe.worker) == (
        first.id,
        "unknown",
        "MaybeSent",
        "gone",
    )
    assert Dispatch.objects.get(message=first.id).cause == "resend"
    assert not Message.objects.filter(failed_attempts__kind="permanent").exists()


def test_the_tallies_count_what_was_committed_and_dispatched(
    exchange: str, spawn: Spawn, wait_until: Any
) -> None:
    bind(exchange)
    publish_numbered(120, keys=5)
    spawn("outbox_dispatch")

    def count(kind: str) -> int:
        return sum(Tally.objects.filter(kind=kind).values_list("count", flat=True))

    wait_until(lambda: (count("committed"), count("dispatched")) == (120, 120), 20)
    assert not Tally.objects.filter(kind="dispatched", bucket=-1).exists()  # each with its latency
    assert first_copies([]) == []
    assert len(known_ids()) == 120


def test_a_locked_row_delays_no_other(exchange: str, spawn: Spawn, wait_until: Any) -> None:
    from django.db import connection

    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no row locks")
    queue = bind(exchange)
    publish_numbered(100)
    locked = Pending.objects.order_by("pk")[50].pk
    with transaction.atomic():
        Pending.objects.select_for_update().get(pk=locked)
        spawn("outbox_dispatch")
        wait_until(lambda: Dispatch.objects.count() == 99, 20)
        assert not Dispatch.objects.filter(message=locked).exists()
    wait_until(settled, 20)
    assert set(copies(arrivals(queue, 100)).values()) == {1}  # it was sent once, and settled late
