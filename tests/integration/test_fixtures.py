"""The fixtures that the other tests stand on."""

from __future__ import annotations

import signal
import socket

import pika
import psycopg
import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from outbox_core.conf import settings as outbox
from outbox_core.models import Operation, Partition
from outbox_core.provision import GROUPS, unguarded
from tests.servers import database_answers


def record_an_operation() -> Operation:
    return Operation.objects.create(
        at=timezone.now(), actor="ana", origin="cli", verb="retry", reason="test", outcome="done"
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("time", ["first", "second"])
def test_a_transactional_test_starts_with_what_a_migration_leaves(time):
    assert Partition.objects.count() == 64
    assert Group.objects.filter(name__startswith="Outboard ").count() == 3
    assert Permission.objects.filter(codename="operate_message").exists()
    assert Operation.objects.count() == 0
    assert unguarded("default") == []
    record_an_operation()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("reset_sequences", [True, False])
def test_a_flush_lifts_the_guards_of_the_audit_trail_and_puts_them_back(reset_sequences):
    operation = record_an_operation()
    Partition.objects.filter(number__lt=7).delete()
    Partition.objects.update(lease=7)
    user = get_user_model().objects.create_user("ana")
    user.groups.set(Group.objects.all())
    call_command("flush", interactive=False, verbosity=0, reset_sequences=reset_sequences)
    for model in apps.get_models():
        if model not in (Partition, Group, Permission, ContentType):
            assert not model._default_manager.exists(), model
    assert Partition.objects.filter(lease=None).count() == 64
    assert {g.name: g.permissions.count() for g in Group.objects.all()} == {
        n: len(p) for n, p in GROUPS.items()
    }
    assert unguarded("default") == []
    operation = record_an_operation()
    with pytest.raises(DatabaseError), transaction.atomic():
        operation.delete()


def test_settings_follow_the_exchange_of_the_test(exchange):
    assert exchange == outbox.EXCHANGE


def test_the_broker_is_the_one_of_the_pair(pair, amqp):
    assert outbox.transport == ("rabbitmq" if pair == "real" else "loopback")
    assert bool(amqp) == (pair == "real")


def test_a_spawned_process_has_the_surroundings_of_its_test(spawn, outbox_settings, exchange):
    outbox_settings(
        LEASE=1.5, RETENTION={"dispatched": 3}, MASK=["card", "**.token"], ON_DEAD="skip", KEY_LOCK=True
    )
    record_an_operation()
    source = (
        "from outbox_core.conf import settings as s; from outbox_core.models import Operation; "
        "print(Operation.objects.count(), s.EXCHANGE, s.LEASE, s.RETENTION['dispatched'], s.MASK, s.ON_DEAD, "
        "s.KEY_LOCK)"
    )
    process = spawn("shell", "--no-imports", "-c", source)
    assert process.wait() == 0, process.output
    assert process.output.strip() == f"1 {exchange} 1.5 3 ['card', '**.token'] skip True"
    process = spawn(
        "shell", "--no-imports", "-c", "from outbox_core.conf import settings as s; print(s.AMQP_URL)"
    )
    assert process.wait() == 0, process.output
    assert process.output.strip() == outbox.AMQP_URL


def test_a_spawned_process_can_be_frozen_and_goes_on(spawn, wait_until):
    process = spawn(
        "shell",
        "--no-imports",
        "-c",
        "import time\nfor n in range(10_000): print(n, flush=True); time.sleep(0.01)",
    )
    wait_until(lambda: "0\n" in process.output)
    process.stop()
    seen = process.output
    with pytest.raises(AssertionError, match="still runs"):
        process.wait(timeout=0.5)
    assert process.output[len(seen) :].count("\n") <= 2
    process.cont()
    wait_until(lambda: process.output.count("\n") > seen.count("\n") + 20)
    process.terminate()
    assert process.wait() == -signal.SIGTERM


def test_wait_until_says_what_did_not_come(wait_until):
    assert wait_until(lambda: 7) == 7
    with pytest.raises(AssertionError, match=r"after 0\.1 s still not: the rain ends"):
        wait_until(lambda: None, timeout=0.1, what="the rain ends")


@pytest.mark.parametrize(("factor", "expected"), [("0.1", [1, 1, 500]), ("1", [1, 3, 5000])])
def test_scale_is_at_least_one(monkeypatch, scale, factor, expected):
    monkeypatch.setenv("SCALE", factor)
    assert [scale(n) for n in (1, 3, 5000)] == expected


@pytest.mark.pair("real")
def test_a_private_broker_keeps_durable_messages_through_a_stop(private_rabbitmq):
    assert private_rabbitmq.url == outbox.AMQP_URL
    with pika.BlockingConnection(pika.URLParameters(private_rabbitmq.url)) as broker:
        channel = broker.channel()
        channel.queue_declare("kept", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "kept", b"body", pika.BasicProperties(delivery_mode=2))
    private_rabbitmq.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", private_rabbitmq.port), timeout=2)
    private_rabbitmq.start()
    with pika.BlockingConnection(pika.URLParameters(private_rabbitmq.url)) as broker:
        assert broker.channel().basic_get("kept")[2] == b"body"
    assert "kept" in private_rabbitmq.ctl("list_queues", "name")


@pytest.mark.pair("real")
def test_a_private_database_is_the_tests_own_and_keeps_what_was_committed(private_postgres, spawn):
    record_an_operation()
    process = spawn(
        "shell",
        "--no-imports",
        "-c",
        "from outbox_core.models import Operation; print(Operation.objects.count())",
    )
    assert process.wait() == 0, process.output
    assert process.output.strip() == "1"
    private_postgres.stop(signal.SIGKILL)
    assert not database_answers(private_postgres.url)
    private_postgres.start()
    connection.close()
    assert Operation.objects.count() == 1
    with psycopg.connect(private_postgres.url) as session:
        assert session.execute("SELECT count(*) FROM outbox_core_partition").fetchone() == (64,)
