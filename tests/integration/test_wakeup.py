"""Wake-ups: few, quick, harmless when they fail, and back after a lost session."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from outbox_core import publish, wakeup
from outbox_core.models import Dispatch, Message
from outbox_core.wakeup import CHANGED, CHANNEL, COALESCE, PENDING, Watch
from tests.integration.relaying import bind, running, settled
from tests.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.pair("real")]


@pytest.fixture(autouse=True)
def _forget_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeup, "_last", {})


@pytest.fixture
def listener() -> Iterator[psycopg.Connection]:
    known = connection.get_connection_params()
    wanted = {k: known[k] for k in ("host", "port", "user", "dbname", "password") if k in known}
    with psycopg.connect(**wanted, autocommit=True) as session:
        session.execute(f"LISTEN {CHANNEL}")
        yield session


def heard(session: psycopg.Connection) -> list[str]:
    return [notice.payload for notice in session.notifies(timeout=0.3)]


@pytest.fixture
def watched() -> Iterator[list[str]]:
    """What a Watch tells."""
    told: list[str] = []
    watch = Watch("default", told.append)
    watch.start()
    wait_until(lambda: watch.mode == "notify" and told == [PENDING], 10)
    yield told
    watch.stop()
    watch._thread.join(10)


def test_many_commits_are_few_notifications(listener: psycopg.Connection) -> None:
    began = time.monotonic()
    for n in range(100):
        with transaction.atomic():
            publish("shop.sold", {"n": n})
    took = time.monotonic() - began
    found = heard(listener)
    assert found
    assert set(found) == {PENDING}
    assert len(found) <= took / COALESCE + 1


def test_nothing_is_told_before_the_commit_or_of_what_was_rolled_back(listener: psycopg.Connection) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        publish("shop.sold", {})
        raise ZeroDivisionError
    assert heard(listener) == []
    with transaction.atomic():
        publish("shop.sold", {})
        assert heard(listener) == []
    assert heard(listener) == [PENDING]


def test_a_notification_that_fails_is_logged_and_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wakeup, "CHANNEL", "x" * 100)  # longer than the server takes
    with caplog.at_level(logging.ERROR, "outbox.wakeup"), transaction.atomic():
        message = publish("shop.sold", {})
    assert Message.objects.filter(pk=message.pk).exists()
    assert "Could not notify" in caplog.text


def test_a_message_whose_wake_up_was_swallowed_does_not_wait_for_the_poll(
    exchange: str, outbox_settings: Any
) -> None:
    outbox_settings(POLL_INTERVAL=60)
    bind(exchange)
    with running():
        wait_until(_ready, 20)
        for n in range(5):  # the second of each pair falls into the first one's silence
            with transaction.atomic():
                publish("shop.sold", {"n": n})
            time.sleep(0.01)
            with transaction.atomic():
                publish("shop.sold", {"n": n})
            wait_until(settled, 5)
    assert Dispatch.objects.count() == 12


def _ready() -> bool:
    """The dispatcher has joined and sends what comes."""
    if not Message.objects.exists():
        with transaction.atomic():
            publish("shop.sold", {})
            publish("shop.sold", {})
    return settled()


def test_a_lost_session_is_made_anew_and_says_that_something_may_have_been_missed(watched: list[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND query LIKE 'LISTEN%%' AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchall()
    wait_until(lambda: watched == [PENDING, PENDING], 10)
    wakeup._send("default", CHANGED)
    wait_until(lambda: watched == [PENDING, PENDING, CHANGED], 10)
