"""Settling: what each answer of the broker does to the queue, and what it must not touch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import transaction

from outbox_core import publish
from outbox_core.clock import database_now
from outbox_core.models import Dispatch, FailedAttempt, Message, Parked, Pending
from outbox_core.outbox import queue
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.queue import START, Row
from outbox_core.outbox.settle import Settler
from outbox_core.sql import Dialect, exclusive
from outbox_core.transports.base import Outcome
from tests.spawning import database_url

pytestmark = pytest.mark.django_db(transaction=True)


def queued(count: int = 1, key: str = "k") -> list[Row]:
    """Publish messages of one key and read them as a dispatcher would."""
    with transaction.atomic():
        for n in range(count):
            publish("t", n, key=key)
    return read()


def read() -> list[Row]:
    db = Dialect("default")
    return queue.read(db, dict.fromkeys(range(64), START), [], db.now(), 100)


def settle(*answers: Answer, own: bool = True) -> list[Answer]:
    with exclusive("default") as db:
        return Settler(db, "w", random.Random(1)).settle(answers, own=own)


def answer(row: Row, outcome: Outcome, error: str = "", detail: str = "") -> Answer:
    return Answer(row, outcome, database_now(), error, detail)


def test_a_confirm_moves_the_row_to_the_log() -> None:
    (row,) = queued()
    assert settle(answer(row, Outcome.CONFIRMED)) == []
    assert not Pending.objects.exists()
    dispatch = Dispatch.objects.get()
    assert (dispatch.message_id, dispatch.attempt, dispatch.worker) == (row.id, 1, "w")


def test_a_confirm_at_another_position_does_not_eat_a_redispatch() -> None:
    (row,) = queued()
    Pending.objects.update(position=row.position + 100)
    settle(answer(row, Outcome.CONFIRMED))
    assert Pending.objects.get().position == row.position + 100
    assert Dispatch.objects.count() == 1  # a fact all the same


def test_a_late_confirm_undoes_a_parked_row_and_frees_its_key() -> None:
    row, behind = queued(2)
    settle(answer(row, Outcome.INVALID, "TooLarge", "too large"))
    with exclusive("default") as db:
        queue.set_aside(db, [behind.id])
    assert Parked.objects.get().holds
    settle(answer(row, Outcome.CONFIRMED), own=False)
    assert not Parked.objects.exists()
    assert Dispatch.objects.get().message_id == row.id
    assert Pending.objects.get().available_at is not None


def test_a_late_confirm_of_a_pruned_message_leaves_no_orphan() -> None:
    (row,) = queued()
    Pending.objects.all().delete()
    Message.objects.all().delete()
    settle(answer(row, Outcome.CONFIRMED), own=False)
    assert not Dispatch.objects.exists()


def test_a_failure_counts_only_for_a_row_that_is_as_it_was_read() -> None:
    (row,) = queued()
    Pending.objects.update(attempts=1)
    settle(answer(row, Outcome.RETURNED, "Unroutable", "no queue"))
    assert Pending.objects.get().failures == 0
    assert not FailedAttempt.objects.exists()
    settle(answer(row, Outcome.INVALID, "TooLarge", "too large"))
    assert not Parked.objects.exists()


def test_a_confirm_that_is_settled_twice_is_one_send() -> None:
    """The turn committed, its reply was lost, and so was the lease before the turn could be asked about."""
    (row,) = queued()
    settle(answer(row, Outcome.CONFIRMED))
    settle(answer(row, Outcome.CONFIRMED), own=False)
    assert Dispatch.objects.count() == 1


def test_a_late_confirm_waits_for_pruning_that_looks_at_its_message(pair: str) -> None:
    if pair != "real":
        pytest.skip("SQLite has no row locks")
    (row,) = queued()
    settle(answer(row, Outcome.INVALID, "TooLarge", "too large"))
    with psycopg.connect(database_url()) as pruning:
        pruning.execute("SELECT 1 FROM outbox_core_message WHERE id = %s FOR UPDATE", [row.id])
        left = settle(answer(row, Outcome.CONFIRMED), own=False)
        assert [a.row.id for a in left] == [row.id]
        assert Parked.objects.exists()  # else it would be in no state at all
    assert settle(*left, own=False) == []
    assert Dispatch.objects.count() == 1
    assert not Parked.objects.exists()


@pytest.mark.parametrize(
    ("outcome", "error", "attempts", "failures", "kinds"),
    [
        (Outcome.RETURNED, "Unroutable", 1, 1, ["permanent"]),
        (Outcome.REFUSED, "ExchangeNotFound", 1, 1, ["permanent"]),
        (Outcome.UNKNOWN, "ConnectionLost", 1, 0, ["unknown"]),
        (Outcome.ROAD, "Nacked", 1, 0, ["transient"]),
        (Outcome.ROAD, "BrokerUnreachable", 0, 0, []),
        (Outcome.UNSENT, "", 0, 0, []),
    ],
)
def test_only_failures_of_the_message_count_towards_dead(
    outcome: Outcome, error: str, attempts: int, failures: int, kinds: Sequence[str]
) -> None:
    (row,) = queued()
    settle(answer(row, outcome, error, "why"))
    pending = Pending.objects.get()
    assert (pending.attempts, pending.failures) == (attempts, failures)
    assert [f.kind for f in FailedAttempt.objects.all()] == list(kinds)
    assert not Parked.objects.exists()


def test_a_back_off_counts_from_the_failure_and_has_a_cap(outbox_settings: Any) -> None:
    outbox_settings(BACKOFF_BASE=10, BACKOFF_CAP=20, MAX_ATTEMPTS=1000)
    (row,) = queued()
    Pending.objects.update(failures=200, attempts=200)
    (row,) = read()
    before = database_now()
    settle(answer(row, Outcome.REFUSED, "E", "why"))
    due = Pending.objects.get().available_at
    assert due is not None
    assert before <= due <= database_now() + timedelta(seconds=20)


def test_the_last_failure_parks_and_its_key_waits(outbox_settings: Any) -> None:
    outbox_settings(MAX_ATTEMPTS=1)
    row, behind = queued(2)
    settle(answer(row, Outcome.RETURNED, "Unroutable", "no queue is bound"))
    parked = Parked.objects.get()
    assert (parked.message_id, parked.holds, parked.error_class, parked.attempts) == (
        row.id,
        True,
        "Unroutable",
        1,
    )
    free = {r.id: r.free for r in read()}
    assert free == {behind.id: False}


def test_an_error_text_of_a_megabyte_is_cut() -> None:
    (row,) = queued()
    settle(answer(row, Outcome.REFUSED, "E" * 300, "x" * 1_000_000))
    assert len(Pending.objects.get().last_error) <= 10_000
    assert len(FailedAttempt.objects.get().detail) <= 10_000


def test_promoting_a_key_frees_its_first_row_only_and_none_that_is_held() -> None:
    rows = queued(3)
    with exclusive("default") as db:
        queue.set_aside(db, [r.id for r in rows])
    queue.promote("default", [(rows[0].partition, "k")])
    assert [p.available_at is None for p in Pending.objects.order_by("position")] == [False, True, True]
    Parked.objects.create(
        message_id=999, state="dead", partition=rows[0].partition, key="k", position=0, holds=True
    )
    Pending.objects.filter(pk=rows[0].id).delete()
    queue.promote("default", [(rows[0].partition, "k")])
    assert not Pending.objects.filter(available_at__isnull=False).exists()


def test_new_positions_are_above_every_message() -> None:
    (row,) = queued()
    first, second = queue.next_position("default"), queue.next_position("default")
    assert row.id < first < second
    with transaction.atomic():
        assert publish("t", 1).id > second
