"""Verbs against each other, against a turn of a dispatcher and against pruning, each in threads of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from outbox_core.clock import ClockTimestamp, database_now
from outbox_core.errors import OutboxError, StateChanged
from outbox_core.models import Lease, Message, Operation, Parked, Partition, Pending
from outbox_core.operations import audit
from outbox_core.operations.inspect import standing
from outbox_core.operations.verbs import act
from outbox_core.outbox import leases
from tests.integration.situations import ANA, aside, dead, dispatched, own, pending, retrying

pytestmark = pytest.mark.django_db(transaction=True)


class Threads:
    """Functions that begin together at once; the results in order, an exception as a result."""

    def __init__(self, *functions: Callable[[], Any]) -> None:
        self.results: list[Any] = [None] * len(functions)
        self._gate = threading.Barrier(len(functions))
        self._threads = [
            threading.Thread(target=self._run, args=(i, f), daemon=True) for i, f in enumerate(functions)
        ]

        for thread in self._threads:
            thread.start()

    def join(self) -> list[Any]:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.results

    def _run(self, index: int, function: Callable[[], Any]) -> None:
        self._gate.wait(30)
        try:
            self.results[index] = function()
        except Exception as error:
            self.results[index] = error
        finally:
            connection.close()


def together(*functions: Callable[[], Any]) -> list[Any]:
    return Threads(*functions).join()


def do(verb: str, message: Message, **arguments: Any) -> Callable[[], Any]:
    return lambda: act(verb, message.message_id, actor=ANA, reason="a race", **arguments)


@pytest.fixture
def waiting_for_lock(wait_until: Any) -> Callable[[], None]:
    """Waits until a session of this database waits for a lock of another one."""

    def waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")  # within a transaction the view stands still
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return bool(cursor.fetchone()[0])

    return lambda: wait_until(waits)


@pytest.fixture
def postgresql(pair: str) -> None:
    if pair != "real":
        pytest.skip("row locks are PostgreSQL's; SQLite has one writer")


def test_of_many_clicks_with_one_version_one_has_an_effect() -> None:
    message = dispatched(key="k")
    seen = standing(message).version
    results = together(*[do("redispatch", message, version=seen)] * 6)
    done = [r for r in results if not isinstance(r, Exception)]
    lost = [r for r in results if isinstance(r, StateChanged)]
    assert (len(done), len(lost)) == (1, 5), results
    assert {(r.by, r.at) for r in lost} == {("ana", Operation.objects.get().at)}
    assert Pending.objects.count() == 1


def test_of_two_opposite_verbs_one_wins_and_the_other_is_told() -> None:
    for _ in range(5):
        message = dead()
        seen = standing(message).version
        results = together(do("retry", message, version=seen), do("discard", message, version=seen))
        (lost,) = [r for r in results if isinstance(r, StateChanged)]
        (won,) = [r for r in results if not isinstance(r, Exception)]
        assert lost.actual_state == won.state and lost.by == "ana"
        assert Pending.objects.filter(pk=message.pk).exists() != Parked.objects.filter(pk=message.pk).exists()


def test_many_acts_at_once_leave_a_whole_chain() -> None:
    messages = [dead(key=f"k{i}") for i in range(24)]
    results = together(*[lambda part=messages[i::6]: [do("retry", m)() for m in part] for i in range(6)])
    assert not [r for r in results if isinstance(r, Exception)], results
    assert Operation.objects.count() == 24 and audit.verify() == []


def test_verbs_on_one_key_without_an_owner_leave_nothing_aside_behind_nothing() -> None:
    for i in range(12):
        key = f"key-{i}"
        first, second, third = dead(key=key), aside(key=key), aside(key=key)
        results = together(do("discard", first), do("discard", second))
        assert not [r for r in results if isinstance(r, Exception)], results
        assert Pending.objects.get(pk=third.pk).available_at is not None, f"stuck in round {i}"


@pytest.mark.usefixtures("postgresql")
def test_a_discard_waits_for_the_turn_that_is_running_and_sees_what_it_will_send(
    waiting_for_lock: Callable[[], None],
) -> None:
    message = pending()
    lease = own("dispatcher-a")
    with transaction.atomic():
        Lease.objects.select_for_update(no_key=True).get(pk=lease.pk)
        threads = Threads(do("discard", message))
        waiting_for_lock()
        Lease.objects.filter(pk=lease.pk).update(
            in_flight=leases.encode([message.pk]), turned_at=ClockTimestamp()
        )
    (refusal,) = threads.join()
    assert isinstance(refusal, StateChanged) and refusal.by == "dispatcher-a"
    assert Pending.objects.filter(pk=message.pk).exists()


@pytest.mark.usefixtures("postgresql")
def test_a_discard_begins_again_when_its_partition_changed_hands(
    waiting_for_lock: Callable[[], None],
) -> None:
    message = pending()
    old = own("old")
    with transaction.atomic():
        Lease.objects.select_for_update(no_key=True).get(pk=old.pk)
        threads = Threads(do("discard", message))
        waiting_for_lock()
        new = Lease.objects.create(
            name="new", until=database_now() + timedelta(hours=1), turned_at=ClockTimestamp(),
            in_flight=leases.encode([message.pk]),
        )  # fmt: skip
        Partition.objects.update(lease=new.token)
        Lease.objects.filter(pk=old.pk).delete()
    (refusal,) = threads.join()
    assert isinstance(refusal, StateChanged) and refusal.by == "new"


@pytest.mark.usefixtures("postgresql")
def test_a_retry_waits_for_a_running_one_and_is_told_of_it(
    waiting_for_lock: Callable[[], None],
) -> None:
    message = retrying()
    seen = standing(message).version
    with transaction.atomic():
        do("retry", message, version=seen)()
        threads = Threads(do("retry", message, version=seen))
        waiting_for_lock()
    (refusal,) = threads.join()
    assert isinstance(refusal, StateChanged) and refusal.by == "ana"


@pytest.mark.usefixtures("postgresql")
def test_a_redispatch_of_a_message_that_is_being_pruned_finds_no_message(
    waiting_for_lock: Callable[[], None],
) -> None:
    message = dispatched()
    with transaction.atomic():
        Message.objects.select_for_update().get(pk=message.pk)
        threads = Threads(do("redispatch", message))
        waiting_for_lock()
        Message.objects.filter(pk=message.pk).delete()
    assert isinstance(threads.join()[0], Message.DoesNotExist)
    assert not Pending.objects.exists()


def test_an_act_that_stands_still_for_too_long_is_undone_and_may_be_repeated(
    pair: str, outbox_settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pair == "embedded":
        pytest.skip("SQLite has no server that could end a session")
    outbox_settings(LEASE=1)
    message, reserve = dead(), audit.reserve

    def dawdle(using: str) -> int:
        time.sleep(1)  # a busy machine
        return reserve(using)

    with monkeypatch.context() as slow, pytest.raises(OutboxError, match="too busy"):
        slow.setattr(audit, "reserve", dawdle)
        act("discard", message.pk, actor=ANA, reason="r")
    assert not Operation.objects.exists()
    assert act("discard", message.pk, actor=ANA, reason="r").outcome == "done"
