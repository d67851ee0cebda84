"""Faults that were found by attacking the relay; each test fails without its cure."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from outbox_core import publish, wakeup
from outbox_core.clock import database_now, lease_clock
from outbox_core.errors import OutboxError, TransportError
from outbox_core.inbox.outcomes import Outcome as Handled
from outbox_core.inbox.receiver import Run
from outbox_core.models import Dispatch, Handling, Lease, Partition, Pending, Worker
from outbox_core.operations import audit
from outbox_core.operations.verbs import act
from outbox_core.outbox import dispatcher as dispatcher_module
from outbox_core.outbox import late, leases, queue
from outbox_core.outbox import relay as relay_module
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.queue import START
from outbox_core.outbox.reading import Reading
from outbox_core.outbox.turn import Turn
from outbox_core.sql import Dialect
from outbox_core.transports import transport
from outbox_core.transports.base import Outcome, Send
from tests import spawning
from tests.integration.receiving import delivery, letters, subscribed, take, write_letter
from tests.integration.relaying import alone, arrivals, bind, publish_numbered, relay, settled
from tests.integration.situations import ANA
from tests.processes import Process, free_port

pytestmark = pytest.mark.django_db(transaction=True)

Spawn = Callable[..., Process]


def owned() -> bool:
    return Partition.objects.exclude(lease=None).count() == 64


def end_sessions() -> int:
    """End every session of this database but our own: how many there were."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


def test_an_idle_dispatcher_survives_the_end_of_its_sessions(
    exchange: str, spawn: Spawn, wait_until: Any, outbox_settings: Any, pair: str
) -> None:
    if pair != "real":
        pytest.skip("SQLite has no sessions")
    outbox_settings(POLL_INTERVAL=0.05)
    bind(exchange)
    process = spawn("outbox_dispatch")
    wait_until(owned, 20)
    for _ in range(6):
        wait_until(lambda: end_sessions() > 0 or not process.running, 10)
        turn = Lease.objects.get().turn
        wait_until(lambda before=turn: Lease.objects.get().turn > before or not process.running, 10)
        assert process.running, process.output
    publish_numbered(3)
    wait_until(settled, 15)


def test_a_look_that_fails_costs_nothing_but_itself(exchange: str, monkeypatch: Any) -> None:
    bind(exchange)
    publish_numbered(10)
    look, failed = queue.due_in, []

    def fails_once(*arguments: Any) -> bool:
        if not failed:
            failed.append(True)
            raise OperationalError("the session ended")
        return look(*arguments)

    monkeypatch.setattr(queue, "due_in", fails_once)
    assert relay() == 10
    assert failed


def test_a_batch_that_cannot_be_loaded_after_a_lost_reply_is_sent_all_the_same(
    exchange: str, monkeypatch: Any
) -> None:
    bind(exchange)
    publish_numbered(10)
    commit, load, failed = Turn.commit, relay_module.load, []

    def loses_the_reply(turn: Turn, *arguments: Any) -> None:
        commit(turn, *arguments)
        if turn.lanes and not failed:
            failed.append("reply")
            raise OperationalError("the reply to COMMIT was lost")

    def fails_once(*arguments: Any) -> Any:
        if failed == ["reply"]:
            failed.append("load")
            raise OperationalError("and the session ended again")
        return load(*arguments)

    monkeypatch.setattr(Turn, "commit", loses_the_reply)
    monkeypatch.setattr(relay_module, "load", fails_once)
    assert relay() == 10
    assert failed == ["reply", "load"]


def test_what_tells_the_pages_starts_no_turn(
    exchange: str, spawn: Spawn, wait_until: Any, outbox_settings: Any, pair: str
) -> None:
    if pair != "real":
        pytest.skip("SQLite cannot tell one change from another; a look decides there")
    outbox_settings(HEARTBEAT=3, LEASE=30, POLL_INTERVAL=30)
    bind(exchange)
    spawn("outbox_dispatch")
    wait_until(owned, 20)
    with connection.cursor() as cursor:
        before = Lease.objects.get().turn
        for _ in range(20):
            cursor.execute("SELECT pg_notify(%s, %s)", [wakeup.CHANNEL, wakeup.CHANGED])
            cursor.execute("SELECT pg_sleep(0.1)")
    assert Lease.objects.get().turn - before <= 3  # a heartbeat or so, and what is left of joining


def test_once_waits_for_what_a_dispatcher_owned_that_died_just_now(
    exchange: str, spawn: Spawn, wait_until: Any, outbox_settings: Any
) -> None:
    outbox_settings(LEASE=2, HEARTBEAT=0.4)
    queue_ = bind(exchange)
    process = spawn("outbox_dispatch")
    wait_until(owned, 20)
    process.kill()
    publish_numbered(20, keys=10)
    assert relay() == 20
    assert len(arrivals(queue_, 20)) == 20


def test_once_gives_its_lease_back_when_the_broker_cannot_be_reached(
    exchange: str, outbox_settings: Any, monkeypatch: Any, pair: str
) -> None:
    if pair != "real":
        pytest.skip("the embedded broker is always there")
    outbox_settings(AMQP_URL=f"amqp://guest:guest@127.0.0.1:{free_port()}/")
    monkeypatch.setattr(dispatcher_module, "PATIENCE", 0.5)
    publish_numbered(1)
    with pytest.raises(TransportError):
        relay()
    assert alone()


def test_once_does_not_wait_for_a_database_for_ever(exchange: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(dispatcher_module, "PATIENCE", 0.3)

    def fails(*arguments: Any) -> int:
        raise OperationalError("no such server")

    monkeypatch.setattr(leases, "join", fails)
    with pytest.raises(OperationalError, match="no such server"):
        relay()


def test_partitions_that_come_back_are_read_from_the_start() -> None:
    reading = Reading(500)
    reading.floors = dict.fromkeys((1, 2), queue.Floor(database_now(), 7))
    reading.restart([1])
    assert reading.from_floors([1, 2]) == {1: START, 2: reading.floors[2]}


def test_late_confirms_that_were_recorded_are_not_recorded_again_when_others_fail(monkeypatch: Any) -> None:
    with transaction.atomic():
        for key in ("a", "b", "c"):
            publish("t", 1, key=key)
    db = Dialect("default")
    rows = queue.read(db, dict.fromkeys(range(64), START), [], db.now(), 10)
    answers = [Answer(row, Outcome.CONFIRMED, database_now()) for row in rows]
    lock, calls = late.lock_owner, []

    def fails_at_the_second(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise OperationalError("the session ended")
        return lock(*arguments)

    monkeypatch.setattr(late, "lock_owner", fails_at_the_second)
    with pytest.raises(OperationalError):
        late.record_late("default", "w", answers, random.Random(1))
    assert len(answers) == 2
    late.record_late("default", "w", answers, random.Random(1))
    assert answers == []
    assert Dispatch.objects.count() == 3
    assert not Pending.objects.exists()


@pytest.fixture
def write_lock() -> Iterator[Callable[[float], threading.Thread]]:
    """`write_lock(seconds)`: another session holds SQLite's write lock for so long, from now on."""
    threads: list[threading.Thread] = []

    def hold(seconds: float) -> threading.Thread:
        held = threading.Event()

        def run() -> None:
            try:
                with transaction.atomic():
                    held.set()
                    threading.Event().wait(seconds)
            finally:
                connection.close()

        thread = threading.Thread(target=run)
        threads.append(thread)
        thread.start()
        assert held.wait(10)
        return thread

    yield hold
    for thread in threads:
        thread.join()


def test_nothing_is_sent_when_the_wait_for_the_write_lock_outlasted_the_lease(
    exchange: str, write_lock: Any, pair: str
) -> None:
    if pair != "embedded":
        pytest.skip("the write lock is SQLite's")
    bind(exchange)
    publisher = transport().publisher()
    publisher.open()
    write_lock(0.8)
    publisher.submit(
        [[Send(tag=1, message_id="m", exchange=exchange, routing_key="t", body=b"1")]], lease_clock() + 0.3
    )
    assert [result.outcome for result in publisher.take()] == [Outcome.UNSENT]
    publisher.close()


def test_a_verb_that_waits_for_the_audit_chain_does_not_stop_the_dispatcher(
    exchange: str, spawn: Spawn, wait_until: Any, outbox_settings: Any, pair: str
) -> None:
    if pair != "real":
        pytest.skip("SQLite has one lock for all")
    outbox_settings(LEASE=2, HEARTBEAT=0.4, BACKOFF_BASE=60, BACKOFF_CAP=60)
    bind(exchange, "shop.#")
    spawn("outbox_dispatch")
    wait_until(owned, 20)
    with transaction.atomic():
        message = publish("nobody.hears", 1)
    wait_until(lambda: Pending.objects.filter(failures=1).exists(), 15)
    with psycopg.connect(spawning.database_url()) as session:
        session.execute("SELECT pg_advisory_xact_lock(%s)", [audit.CHAIN_LOCK])
        with pytest.raises(OutboxError, match="another session holds a lock"):
            act("discard", message.message_id, actor=ANA, reason="it waits")
        publish_numbered(20)
        wait_until(lambda: Dispatch.objects.count() == 20, 10)
    assert act("discard", message.message_id, actor=ANA, reason="now").outcome == "done"


def test_a_process_that_stops_with_the_audit_chain_in_hand_loses_it(outbox_settings: Any, pair: str) -> None:
    if pair != "real":
        pytest.skip("SQLite has no server that could end a session")
    outbox_settings(LEASE=1)
    with pytest.raises(DatabaseError), transaction.atomic():
        audit.reserve("default")
        threading.Event().wait(1)
        audit.reserve("default")
    connection.close()


def test_sigterm_ends_a_dispatcher_in_good_order_while_the_broker_is_frozen(
    exchange: str, private_rabbitmq: Any, spawn: Spawn, wait_until: Any
) -> None:
    bind(exchange)
    process = spawn("outbox_dispatch")
    wait_until(owned, 20)
    wait_until(Worker.objects.filter(broker="connected").exists, 20)
    private_rabbitmq.freeze()
    publish_numbered(100)
    wait_until(lambda: bytes(Lease.objects.get().in_flight), 10)
    assert process.end(10) == 0
    assert alone()
    assert not Pending.objects.exclude(attempts=1).exists()  # all of it was maybe sent


@pytest.mark.parametrize("key", ["k\0", "\ud800", "k" * 256])
def test_a_key_that_no_column_can_hold_does_not_stop_an_ordered_consumer(key: str) -> None:
    with subscribed(write_letter, ordered=True) as subscription:
        for redelivered in (False, True):
            given = delivery(headers={"outbox-key": key}, redelivered=redelivered)
            assert take(subscription, given) is Handled.UNDECODABLE
        assert take(subscription, delivery(headers={"outbox-key": "k"})) is Handled.HANDLED
    assert letters() == 1


def test_a_session_that_the_database_ended_is_not_the_fault_of_the_message(
    monkeypatch: Any, pair: str
) -> None:
    if pair != "real":
        pytest.skip("SQLite has no sessions")
    known, slept = Run._known, []

    def sleeps_once(run: Run, now: Any) -> Any:
        if not slept:
            slept.append(True)
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
            threading.Event().wait(0.3)
        return known(run, now)

    monkeypatch.setattr(Run, "_known", sleeps_once)
    with subscribed(write_letter) as subscription:
        given = delivery()
        with pytest.raises(DatabaseError):
            take(subscription, given)
        connection.close()
        assert take(subscription, given) is Handled.HANDLED
    assert not Handling.objects.exists()
