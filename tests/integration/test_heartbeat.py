"""The sign of life: shown while a worker lives, gone when it leaves, and never a reason for it to fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from outbox_core.clock import database_now
from outbox_core.heartbeat import Heartbeat, worker_name
from outbox_core.models import Worker
from outbox_core.shutdown import Stop
from outbox_core.transports.base import BrokerState

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def quick(outbox_settings: Callable[..., None]) -> None:
    outbox_settings(HEARTBEAT=0.2)


def test_a_worker_is_shown_until_it_leaves(wait_until: Any) -> None:
    with Heartbeat("default", "dispatcher", "alpha") as beat:
        worker = wait_until(lambda: Worker.objects.filter(name="alpha").first())
        assert (worker.kind, worker.pid, worker.broker) == ("dispatcher", os.getpid(), "")
        assert abs((database_now() - worker.heartbeat).total_seconds()) < 5
        assert abs((database_now() - worker.started_at).total_seconds()) < 5
        beat.partitions, beat.wakeup, beat.problems = 32, "notify", {"mail": "refused"}
        beat.broker = BrokerState("blocked", "memory", datetime(2026, 1, 2, tzinfo=UTC))
        shown = wait_until(lambda: Worker.objects.filter(name="alpha", broker="blocked").first())
        assert (shown.partitions, shown.wakeup, shown.problems) == (32, "notify", {"mail": "refused"})
        assert (shown.broker_detail, shown.broker_since) == ("memory", datetime(2026, 1, 2, tzinfo=UTC))
        assert shown.started_at == worker.started_at
        wait_until(lambda: Worker.objects.get(name="alpha").heartbeat > shown.heartbeat)
    assert not Worker.objects.exists()


def test_the_rate_is_what_was_counted_since_the_last_beat(wait_until: Any) -> None:
    with Heartbeat("default", "consumer", "alpha") as beat:
        wait_until(Worker.objects.exists)
        beat.count(100)
        rate = wait_until(lambda: Worker.objects.get().rate)
        assert 0 < rate < 5000
        wait_until(lambda: Worker.objects.get().rate == 0)


def test_a_namesake_that_died_leaves_neither_its_drain_nor_its_start(wait_until: Any) -> None:
    old = database_now() - timedelta(days=1)
    Worker.objects.create(
        kind="consumer", name="alpha", host="h", pid=1, version="1", started_at=old, heartbeat=old, drain=True
    )
    stop = Stop()
    with Heartbeat("default", "consumer", "alpha", stop=stop):
        worker = wait_until(lambda: Worker.objects.filter(pid=os.getpid()).first())
        assert (worker.drain, worker.started_at > old) == (False, True)
        assert not stop.is_set()
        Worker.objects.update(drain=True)
        assert stop.wait(5)


def test_rows_that_have_been_silent_for_long_are_removed(wait_until: Any) -> None:
    for minutes in (1, 11):
        Worker.objects.create(
            kind="consumer", name=f"silent-{minutes}", host="h", pid=1, version="1",
            heartbeat=database_now() - timedelta(minutes=minutes),
        )  # fmt: skip
    with Heartbeat("default", "consumer", "alpha"):
        wait_until(lambda: not Worker.objects.filter(name="silent-11").exists())
        assert Worker.objects.filter(name="silent-1").exists()


def test_a_worker_that_another_process_took_over_is_not_removed(wait_until: Any) -> None:
    with Heartbeat("default", "consumer", "alpha") as beat:
        wait_until(Worker.objects.exists)
        beat._leave.set()
        Worker.objects.update(pid=1)
    assert Worker.objects.get().pid == 1


def test_while_the_database_refuses_the_worker_goes_on_and_says_so_once(
    caplog: pytest.LogCaptureFixture, wait_until: Any
) -> None:
    table = Worker._meta.db_table
    with Heartbeat("default", "consumer", "alpha") as beat:
        wait_until(Worker.objects.exists)
        _execute(f"ALTER TABLE {table} RENAME TO away")
        try:
            wait_until(lambda: _said(caplog))
            beat.count()
            time.sleep(0.5)  # more beats that fail
        finally:
            _execute(f"ALTER TABLE away RENAME TO {table}")
        assert len(_said(caplog)) == 1
        Worker.objects.all().delete()
        wait_until(Worker.objects.exists)


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _said(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "outbox.heartbeat"]


def test_every_process_has_its_own_name() -> None:
    assert worker_name().endswith(f"-{os.getpid()}")
    assert len(worker_name()) <= 255
