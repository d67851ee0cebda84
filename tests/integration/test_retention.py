"""Pruning: what goes, what stays, no orphans, and the race with a redispatch."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Exists, OuterRef

from outbox_core.clock import database_now
from outbox_core.models import (
    Dispatch,
    Duplicate,
    FailedAttempt,
    Handling,
    Message,
    Operation,
    Parked,
    Pending,
    Receipt,
)
from outbox_core.operations import retention
from outbox_core.operations.retention import Pruned, prune
from outbox_core.operations.verbs import act
from tests.integration.situations import ANA, dead, dispatched, pending, retrying

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`later(days)`: pruning believes that it is so many days later. (Facts can't be made older: triggers.)"""

    def move(days: float) -> datetime:
        then = database_now() + timedelta(days=days)
        monkeypatch.setattr(retention, "database_now", lambda using: then)
        return then

    return move


def receive(message: Message, consumer: str = "basket") -> Receipt:
    return Receipt.objects.create(
        consumer=consumer, message_id=str(message.message_id), received_at=database_now(), outcome="processed",
        digest="d",
    )  # fmt: skip


def orphans() -> int:
    return sum(
        model.objects.exclude(message=None)
        .exclude(Exists(Message.objects.filter(pk=OuterRef("message_id"))))
        .count()
        for model in (Dispatch, FailedAttempt, Parked, Pending)
    )


def test_old_sent_messages_go_with_all_that_hangs_on_them(later: Any) -> None:
    old = [dispatched() for _ in range(5)]
    FailedAttempt.objects.create(
        message=old[0], worker="w", attempt=1, error_class="E", detail="d", kind="transient"
    )
    later(29)
    assert prune() == Pruned(receipts=0)
    later(31)
    assert prune(batch=2).messages == 5
    assert not Message.objects.exists() and not Dispatch.objects.exists() and orphans() == 0


def test_what_is_pending_dead_handled_or_lost_stays(later: Any) -> None:
    kept = [pending(), retrying(), dead(), dispatched(), pending()]
    FailedAttempt.objects.create(
        message=kept[2], worker="w", attempt=1, error_class="E", detail="d", kind="permanent"
    )
    Handling.objects.create(
        consumer="c", message_id=str(kept[3].message_id), body=b"", digest="d", state="dead"
    )
    Pending.objects.filter(pk=kept[4].pk).delete()  # in no state: a bug that must stay visible
    again = dispatched()
    act("redispatch", again.message_id, actor=ANA, reason="r")
    later(4000)
    assert prune() == Pruned()
    assert Message.objects.count() == 6 and FailedAttempt.objects.count() == 1


def test_marked_and_discarded_ones_go_when_their_act_is_old(later: Any) -> None:
    for verb in ("mark", "discard"):
        act(verb, pending().message_id, actor=ANA, reason="r")
    later(31)
    assert prune().messages == 2
    assert not Parked.objects.exists() and Operation.objects.count() == 2


def test_a_receipt_stands_for_the_dedupe_window_and_while_its_message_may_be_sent(
    later: Any, outbox_settings: Any
) -> None:
    gone, kept = dispatched(), retrying()
    receive(gone), receive(kept)
    Receipt.objects.create(
        consumer="c", message_id="no uuid", received_at=database_now(), outcome="stale", digest="d"
    )
    outbox_settings(RETENTION={"receipts": 1}, DEDUPE_WINDOW=7)
    later(6)
    assert prune().receipts == 0
    later(8)
    assert prune().receipts == 2
    assert Receipt.objects.get().message_id == str(kept.message_id)


def test_failures_and_duplicates_have_their_own_time(later: Any) -> None:
    FailedAttempt.objects.create(
        foreign_id="x", consumer="c", worker="w", attempt=1, error_class="E", detail="d", kind="transient"
    )  # fmt: skip
    Duplicate.objects.create(message_id="x", cause="race", same_payload=True, digest="d")
    later(89)
    assert prune() == Pruned()
    later(91)
    assert prune() == Pruned(failures=1, duplicates=1)


def test_it_stops_when_it_is_told_to(later: Any) -> None:
    for _ in range(6):
        dispatched()
    later(31)
    turns = iter([True, True, False])
    assert prune(batch=2, go_on=lambda: next(turns, False)).messages == 4
    assert prune(batch=2).messages == 2


def test_the_command_reports(later: Any, capsys: pytest.CaptureFixture[str]) -> None:
    dispatched()
    later(31)
    call_command("outbox_prune", "--json")
    assert capsys.readouterr().out == '{"messages": 1, "receipts": 0, "failures": 0, "duplicates": 0}\n'


def test_a_redispatch_that_commits_first_saves_its_message(later: Any, pair: str) -> None:
    """The verb holds the Message while pruning comes by: pruning must skip it, not wait and then delete."""
    if pair != "real":
        pytest.skip("row locks are PostgreSQL's; SQLite has one writer")
    message, other = dispatched(), dispatched()
    later(31)
    found: list[Pruned] = []

    def prune_in_thread() -> None:
        found.append(prune())
        connection.close()

    thread = threading.Thread(target=prune_in_thread)
    with transaction.atomic():
        act("redispatch", message.message_id, actor=ANA, reason="r")
        thread.start()
        thread.join(30)
        assert not thread.is_alive() and found == [Pruned(messages=1)]
    assert list(Message.objects.all()) == [message] and Pending.objects.get().pk == message.pk
    assert not Message.objects.filter(pk=other.pk).exists() and orphans() == 0
