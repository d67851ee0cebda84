"""Publishing: a message exists if and only if its transaction committed; bad input leaves nothing behind."""

from __future__ import annotations

import threading
import uuid
import zlib
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from outbox_core import Outgoing, publish, publish_many
from outbox_core.clock import database_now
from outbox_core.context import Incoming, handling
from outbox_core.errors import InvalidMessage, MessageConflict, NotInTransaction
from outbox_core.models import Duplicate, Message, Pending

pytestmark = pytest.mark.django_db(transaction=True)


def stored() -> set[str]:
    assert set(Message.objects.values_list("id", flat=True)) == set(
        Pending.objects.values_list("pk", flat=True)
    )
    return set(Message.objects.values_list("type", flat=True))


def test_a_message_is_committed_with_the_business_change() -> None:
    with transaction.atomic():
        Group.objects.create(name="order 7")
        message = publish("orders.placed", {"order_id": 7}, key="order-7", headers={"tenant": "a"})
    assert Group.objects.filter(name="order 7").exists()
    kept = Message.objects.get()
    assert (kept.id, kept.message_id, kept.payload) == (message.id, message.message_id, '{"order_id":7}')
    assert kept.created_at == message.created_at
    assert kept.message_id.version == 7
    pending = Pending.objects.get()
    assert (pending.position, pending.key, pending.type) == (message.id, "order-7", "orders.placed")
    assert pending.partition == zlib.crc32(b"order-7") % 64
    assert pending.available_at is not None
    assert pending.available_at <= database_now()


def test_a_rolled_back_transaction_leaves_no_message() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        publish("a", 1)
        raise ZeroDivisionError
    assert stored() == set()


def test_an_outer_rollback_removes_what_an_inner_block_published() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        with transaction.atomic():
            publish("a", 1)
        raise ZeroDivisionError
    assert stored() == set()


def test_an_inner_rollback_removes_only_what_was_published_inside() -> None:
    with transaction.atomic():
        publish("a", 1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            publish("b", 1)
            raise ZeroDivisionError
    assert stored() == {"a"}


def test_outside_a_transaction_it_raises_and_writes_nothing() -> None:
    with pytest.raises(NotInTransaction, match=r"transaction\.atomic"):
        publish("a", 1)
    assert stored() == set()


def test_without_that_requirement_it_commits_at_once(outbox_settings: Any) -> None:
    outbox_settings(REQUIRE_TRANSACTION=False)
    publish("a", 1)
    assert stored() == {"a"}


def test_if_the_row_cannot_be_written_the_business_change_is_rolled_back() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE outbox_core_pending RENAME TO outbox_core_elsewhere")
    try:
        with pytest.raises(DatabaseError), transaction.atomic():
            Group.objects.create(name="order 7")
            publish("a", 1)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE outbox_core_elsewhere RENAME TO outbox_core_pending")
    assert not Group.objects.filter(name="order 7").exists()
    assert stored() == set()


def deep() -> object:
    value: object = 1
    for _ in range(300):
        value = [value]
    return value


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"payload": float("nan")}, "payload", "a finite number"),
    ({"payload": {"x": float("inf")}}, "payload.x", "a finite number"),
    ({"payload": {"a": "x\0y"}}, "payload.a", "text without NUL"),
    ({"payload": "\ud800"}, "payload", "text without lone surrogates"),
    ({"payload": object()}, "payload", "what JSON has a form for"),
    ({"payload": "x" * 2 * 1024 * 1024}, "payload", "1048576 bytes"),
    ({"payload": 10**5000}, "payload", "4300 digits"),
    ({"type": "t" * 300}, "type", "255 bytes"),
    ({"type": "é" * 128}, "type", "255 bytes"),
    ({"type": "😀" * 64}, "type", "255 bytes"),
    ({"type": ""}, "type", "text that is not empty"),
    ({"type": "a\0"}, "type", "text without NUL"),
    ({"type": 7}, "type", "text"),
    ({"key": "k" * 256}, "key", "255 bytes"),
    ({"key": "k\0"}, "key", "text without NUL"),
    ({"key": "\udfff"}, "key", "text without lone surrogates"),
    ({"key": None}, "key", "text"),
    ({"correlation_id": "c" * 256}, "correlation_id", "255 bytes"),
    ({"causation_id": "c" * 256}, "causation_id", "255 bytes"),
    ({"destination": "e" * 256}, "exchange", "255 bytes"),
    ({"destination": "e/" + "k" * 256}, "routing key", "255 bytes"),
    ({"destination": ""}, "destination", "exchange or exchange/routing_key"),
    ({"message_id": "seven"}, "message_id", "a UUID"),
    ({"headers": {"h": "x" * 65_536}}, "headers", "65536 bytes"),
    ({"headers": {"h": 2**63}}, "headers.h", "a 64-bit integer"),
    ({"headers": {"h": 1.5}}, "headers.h", "text, bool, 64-bit int, lists and dicts of these"),
    ({"headers": {"h": {"x": ["\0"]}}}, "headers.h.x[0]", "text without NUL"),
    ({"headers": {"n" * 256: 1}}, "headers (a name)", "255 bytes"),
    ({"headers": {"outbox-attempt": 1}}, "headers.outbox-attempt", "names that are not reserved"),
    ({"headers": {"traceparent": "x"}}, "headers.traceparent", "names that are not reserved"),
    ({"headers": {"cloudEvents_id": "x"}}, "headers.cloudEvents_id", "names that are not reserved"),
    ({"headers": "x"}, "headers", "a mapping"),
    ({"delay": -1}, "delay", "0 s to 10 years"),
    ({"delay": "soon"}, "delay", "seconds or a timedelta"),
]


@pytest.mark.parametrize(
    ("change", "field", "limit"), BAD, ids=[f"{f}-{i}" for i, (_, f, _) in enumerate(BAD)]
)
def test_bad_input_is_named_and_nothing_is_half_written(
    change: dict[str, Any], field: str, limit: str
) -> None:
    arguments = {"type": "t", "payload": 1, **change}
    with transaction.atomic():
        Group.objects.create(name="kept")
        with pytest.raises(InvalidMessage) as caught:
            publish(**arguments)
        with pytest.raises(InvalidMessage) as in_a_list:
            publish_many([Outgoing("t", 1), Outgoing(**arguments)])
    assert (caught.value.field, str(caught.value.limit)) == (field, limit)
    assert in_a_list.value.field == f"items[1].{field}"
    assert stored() == set()
    assert Group.objects.filter(name="kept").exists()  # the transaction stays the caller's


def test_a_payload_that_is_too_deep_names_the_limit() -> None:
    with pytest.raises(InvalidMessage, match="100 levels"), transaction.atomic():
        publish("t", deep())
    assert stored() == set()


@pytest.mark.parametrize(
    "arguments",
    [
        {"type": "t" * 255}, {"type": "é" * 127}, {"type": "a b/c"}, {"type": "commande.créée"}, {"type": "😀"},
        {"payload": {"a": "\\u0000"}}, {"payload": 10**4300 - 1}, {"payload": None}, {"payload": []},
        {"payload": "x" * (1024 * 1024 - 2)}, {"destination": "/queue"}, {"headers": {"h": "x" * 60_000}},
    ],
)  # fmt: skip
def test_what_is_just_inside_a_limit_is_stored(arguments: dict[str, Any]) -> None:
    with transaction.atomic():
        message = publish(**{"type": "t", "payload": 1, **arguments})
    assert Message.objects.get().payload == message.payload


def test_the_same_id_and_content_is_no_second_message_but_a_recorded_duplicate() -> None:
    id_ = uuid.uuid4()
    with transaction.atomic():
        first = publish("a", {"n": 1}, message_id=id_)
    with transaction.atomic():
        again = publish("a", {"n": 1}, message_id=str(id_))
    assert again.id == first.id
    assert stored() == {"a"}
    duplicate = Duplicate.objects.get()
    assert (duplicate.cause, duplicate.message_id, duplicate.same_payload) == ("producer", str(id_), True)


@pytest.mark.parametrize("other", [{"payload": {"n": 2}}, {"type": "b"}, {"key": "k"}])
def test_the_same_id_with_other_content_is_a_conflict(other: dict[str, Any]) -> None:
    arguments = {"type": "a", "payload": {"n": 1}, "message_id": uuid.uuid4()}
    with transaction.atomic():
        publish(**arguments)
    with transaction.atomic(), pytest.raises(MessageConflict) as caught:
        publish_many([Outgoing("c", 1), Outgoing(**{**arguments, **other})])
    assert caught.value.message_id == arguments["message_id"]
    assert stored() == {"a"}


def test_one_id_twice_in_a_list_is_one_message() -> None:
    id_ = uuid.uuid4()
    with transaction.atomic():
        first, second = publish_many([Outgoing("a", 1, message_id=id_), Outgoing("a", 1, message_id=id_)])
    assert first.id == second.id
    assert Message.objects.count() == Duplicate.objects.count() == 1


def test_a_thousand_messages_take_three_statements_at_most_and_keep_their_order() -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        messages = publish_many(Outgoing("a", {"n": n}, key="k") for n in range(2500))
    assert len(queries) <= 3 * 3
    ids = [m.id for m in messages]
    assert ids == sorted(ids)
    assert [m.payload for m in Message.objects.order_by("id")] == [f'{{"n":{n}}}' for n in range(2500)]


def test_inside_a_handler_ids_are_derived_and_causes_kept() -> None:
    def run() -> Message:
        with handling(Incoming("m-1", "billing", "c-1", "")), transaction.atomic():
            return publish("a", 1)

    first, again = run(), run()
    assert first.id == again.id
    assert (first.correlation_id, first.causation_id) == ("c-1", "m-1")


def test_a_delayed_message_is_scheduled() -> None:
    with transaction.atomic():
        publish("a", 1, delay=timedelta(hours=1))
    pending = Pending.objects.get()
    assert pending.scheduled
    assert pending.available_at is not None
    assert timedelta(minutes=59) < pending.available_at - database_now() <= timedelta(hours=1)


def test_with_key_lock_ids_of_a_key_follow_the_order_of_commits(outbox_settings: Any, pair: str) -> None:
    """The second transaction waits for the first to end before it draws its id."""
    outbox_settings(KEY_LOCK=True)
    published, may_commit, order = threading.Event(), threading.Event(), []

    def first() -> None:
        try:
            with transaction.atomic():
                publish("first", 1, key="k")
                published.set()
                may_commit.wait(10)
                order.append("first")
        finally:
            connection.close()

    def second() -> None:
        try:
            published.wait(10)
            with transaction.atomic():
                publish("second", 1, key="k")
                order.append("second")
        finally:
            connection.close()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    published.wait(10)
    threads[1].join(0.3)
    may_commit.set()
    for thread in threads:
        thread.join(10)
    assert order == ["first", "second"]
    assert list(Message.objects.order_by("id").values_list("type", flat=True)) == ["first", "second"]


@pytest.mark.parametrize("table", ["message", "operation"])
def test_facts_refuse_to_be_changed(table: str) -> None:
    with transaction.atomic():
        publish("a", 1)
    if table == "operation":
        from outbox_core.models import Operation

        Operation.objects.create(
            at=database_now(), actor="ana", origin="cli", verb="retry", reason="r", outcome="done"
        )
    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE outbox_core_{table} SET id = id + 1")
    if table == "operation":
        with (
            pytest.raises(DatabaseError, match="append-only"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(f"DELETE FROM outbox_core_{table}")
