"""`outbox_status`: JSON, check, audit and reconcile, with their exit codes."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from outbox_core import provision
from outbox_core.clock import ClockTimestamp, database_now
from outbox_core.inbox import registry
from outbox_core.models import Operation, Parked, Partition, Pending, Worker
from outbox_core.operations.reconcile import reconcile
from outbox_core.operations.verbs import act
from tests.integration.situations import ANA, aside, dead, own, partition, pending, received, retrying

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_subscriptions", {})


def run(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("outbox_status", *arguments, stdout=out, stderr=out)
    except CommandError as error:
        return error.returncode, out.getvalue() + str(error)
    except SystemExit as answer:
        return int(answer.code or 0), out.getvalue()
    return 0, out.getvalue()


def dispatcher(**fields: object) -> None:
    Worker.objects.create(
        **{"kind": "dispatcher", "name": "dispatcher-a", "host": "h", "pid": 1, "version": "1", "broker": "connected",
           "heartbeat": ClockTimestamp(), **fields}
    )  # fmt: skip


def test_json_has_the_names_of_the_contract() -> None:
    dispatcher(partitions=64, rate=3.5, wakeup="notify")
    pending(), retrying(), dead()
    code, out = run("--json")
    status = json.loads(out)
    assert code == 0 and list(status) == [
        "pending", "retrying", "dead", "marked", "discarded", "scheduled", "dispatched", "duplicates",
        "consumers_retrying", "consumers_dead",
        "oldest_pending_seconds", "workers",
    ]  # fmt: skip
    assert (status["pending"], status["retrying"], status["dead"]) == (1, 1, 1)
    (worker,) = status["workers"]
    assert set(worker) == {
        "kind", "name", "host", "pid", "version", "heartbeat_age_seconds", "silent", "partitions", "rate", "broker",
        "wakeup",
    }  # fmt: skip


def test_check_is_0_well_1_dead_2_no_dispatcher() -> None:
    assert run("--check")[0] == 2
    dispatcher()
    assert run("--check") == (0, "Everything is delivered.\n")
    dead()
    code, out = run("--check")
    assert code == 1 and out.startswith("1 message could not be delivered")


def test_without_an_option_it_is_for_people() -> None:
    dispatcher()
    pending()
    code, out = run()
    assert code == 0 and "Delivery is on time." in out and "pending  1" in out and "dispatcher-a on h" in out


def test_verify_audit_prints_the_head_and_fails_for_a_forged_row() -> None:
    act("discard", pending().message_id, actor=ANA, reason="r")
    row = Operation.objects.get()
    code, out = run("--verify-audit")
    assert code == 0 and row.hash in out
    provision.unguard("default")
    try:
        Operation.objects.update(actor="eve")
    finally:
        provision.guard("default")
    code, out = run("--verify-audit")
    assert code == 1 and f"Operation {row.pk}: its content was changed" in out


def test_reconcile_finds_nothing_in_order() -> None:
    retrying(key="k"), aside("k"), dead(key="held"), aside("held"), pending(delay=60)
    own()
    assert run("--reconcile") == (0, "All rows fit together.\n")


def test_reconcile_frees_what_is_set_aside_behind_nothing() -> None:
    message = aside("k")
    code, out = run("--reconcile")
    assert code == 0 and 'key "k" was set aside behind nothing. Repaired.' in out
    assert Pending.objects.get(pk=message.pk).available_at is not None
    assert reconcile() == []


def test_reconcile_names_what_contradicts_itself() -> None:
    lost, both, orphan = pending(), pending(), pending()
    Pending.objects.filter(pk=lost.pk).delete()
    Parked.objects.create(
        message=both, state="marked", partition=partition(both), position=both.pk, type="t", destination="e",
        holds=False,
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM outbox_core_message WHERE id = %s", [orphan.pk])
    Partition.objects.filter(number=7).delete()
    Partition.objects.filter(number=8).update(lease=999)
    try:
        code, out = run("--reconcile")
    finally:
        Partition.objects.get_or_create(number=7)
        Partition.objects.filter(number=8).update(lease=None)
    assert code == 1
    for words in (
        f"Message {lost.message_id} (row {lost.pk}) is neither queued", f"Message {both.pk} is queued and parked",
        f"Pending {orphan.pk} has no Message", "Partitions 7 have no row", "Partition 8 is owned by lease 999",
    ):  # fmt: skip
        assert words in out


def test_an_unknown_database_is_usage() -> None:
    assert run("--database", "elsewhere")[0] == 2


def test_what_consumers_gave_up_is_counted_and_makes_the_check_fail() -> None:
    dispatcher()
    received(pending(), "dead")
    received(pending(), "retrying")
    received(pending(), "waiting")
    Pending.objects.all().delete()
    numbers = json.loads(run("--json")[1])
    assert (numbers["consumers_dead"], numbers["consumers_retrying"]) == (1, 2)
    code, out = run("--check")
    assert code == 1
    assert out == (
        "1 message was delivered, but a consumer gave it up. 1 message waits behind it at the consumer.\n"
    )


def test_silent_workers_are_told_last_in_one_line_without_their_old_figures() -> None:
    for n in range(7):
        dispatcher(name=f"gone-{n}", rate=120, partitions=64)
    Worker.objects.update(heartbeat=database_now() - timedelta(minutes=5))
    dispatcher(name="here")
    *_, living, silent = run()[1].splitlines()
    assert "dispatcher  here on " in living
    assert silent.split()[:5] == ["7", "silent", "dispatcher", "gone-0", "for"]
    assert silent.endswith(" and 2 more")
    assert "120" not in silent and "connected" not in silent
    first, *_, last = json.loads(run("--json")[1])["workers"]
    assert (first["name"], first["silent"]) == ("here", False)
    assert (last["silent"], last["partitions"], last["rate"], last["broker"]) == (True, 0, 0.0, "")
