"""The consumer's loop on a real broker and database: nothing lost, nothing twice in effect, and a clean end."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections

from outbox_core.inbox import locks
from outbox_core.inbox.consumer import ConsumerLoop
from outbox_core.inbox.message import InboxMessage
from outbox_core.inbox.registry import Subscription
from outbox_core.models import Binding, Duplicate, Handling, Receipt, Worker
from outbox_core.shutdown import Stop
from outbox_core.transports import transport
from outbox_core.transports.base import Outcome, Publisher, Send
from tests.integration.carrying import each_alone, message, send_all, until_usable
from tests.integration.receiving import letters, make_due, subscribed, write_letter
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)

Put = Callable[..., list[Send]]


@pytest.fixture
def publisher(exchange: str) -> Iterator[Publisher]:
    made = transport().publisher()
    made.open()
    until_usable(made)
    yield made
    made.close()


@pytest.fixture
def put(publisher: Publisher, exchange: str) -> Put:
    """`put(count, type)`: that many messages in the queues that are bound to the type."""

    def send(count: int, type: str = "test.said", **changes: Any) -> list[Send]:
        sends = [message(exchange, type, **changes) for _ in range(count)]
        results = send_all(publisher, each_alone(sends))
        assert {r.outcome for r in results.values()} == {Outcome.CONFIRMED}
        return sends

    return send


def declare(*subscriptions: Subscription) -> None:
    assert transport().apply_topology([s.queue for s in subscriptions]) == []


def consume(
    *subscriptions: Subscription, stop: Stop | None = None, once: bool = True, name: str = ""
) -> Counter[str]:
    """Run the loop here."""
    loop = ConsumerLoop("default", {s.consumer: s for s in subscriptions}, name)
    return loop.run(stop or Stop(), once=once)


@pytest.mark.parametrize("group", [1, 7])
def test_what_stands_in_the_queues_is_handled_once_and_acked(put: Put, group: int) -> None:
    with (
        subscribed(write_letter, group=group) as one,
        subscribed(write_letter, "test.#", group=group) as other,
    ):
        declare(one, other)
        sends = put(30)
        assert consume(one, other) == {"handled": 60}
        assert consume(one, other) == {}
    assert [letters(send.message_id) for send in sends] == [2] * 30
    assert not Duplicate.objects.exists()


@pytest.mark.parametrize("group", [1, 7])
def test_failures_leave_the_queue_and_are_run_again_when_they_are_due(put: Put, group: int) -> None:
    def fail_once(message: InboxMessage) -> None:
        write_letter(message)
        if message.run == 1:
            raise LookupError

    with subscribed(fail_once, group=group) as subscription:
        declare(subscription)
        put(5)
        first = consume(subscription)
        make_due()
        both = first + consume(subscription)
    assert (both["kept"], both["handled"]) == (5, 5)
    assert letters() == 5
    assert not Handling.objects.exists()
    assert not Duplicate.objects.exists()


@pytest.mark.parametrize("group", [1, 7])
def test_a_message_that_is_put_twice_has_one_effect_and_one_record(put: Put, group: int) -> None:
    with subscribed(write_letter, group=group) as subscription:
        declare(subscription)
        put(2, message_id="the-same")
        assert consume(subscription) == {"handled": 1, "duplicate": 1}
    assert letters() == 1
    assert Duplicate.objects.get().cause == "producer"


def test_on_stop_the_running_handler_ends_and_the_rest_is_given_back(put: Put) -> None:
    stop = Stop()

    def stop_at_third(message: InboxMessage) -> None:
        write_letter(message)
        if letters() == 3:
            stop.set()

    with subscribed(stop_at_third) as subscription:
        declare(subscription)
        sends = put(20)
        assert consume(subscription, stop=stop, once=False)["handled"] == 3
        assert letters() == 3
        rest = consume(subscription)
    assert [letters(send.message_id) for send in sends] == [1] * 20
    assert rest["handled"] == 17
    assert rest["kept"] <= 17  # those that the first loop had held come flagged as redelivered
    assert not Duplicate.objects.exists()


def test_a_delivery_whose_other_copy_is_running_waits_and_lets_others_pass(
    put: Put, pair: str, wait_until: Any
) -> None:
    if pair == "embedded":
        pytest.skip("SQLite has one writer: nothing runs beside another")
    stop = Stop()
    with subscribed(write_letter) as subscription:
        declare(subscription)
        (held,) = put(1)
        other = connection.copy()
        loop = threading.Thread(
            target=lambda: (consume(subscription, stop=stop, once=False), connections.close_all())
        )
        try:
            with other.cursor() as cursor:
                slot = locks._slot("message", subscription.consumer, held.message_id)
                cursor.execute("SELECT pg_advisory_lock(%s)", [slot])
            loop.start()
            put(3)
            wait_until(lambda: letters() == 3)
            assert not letters(held.message_id)
            other.close()
            wait_until(lambda: letters(held.message_id))
        finally:
            other.close()
            stop.set()
            loop.join(20)
    assert letters() == 4


def test_a_binding_whose_subscription_is_gone_is_unbound(
    put: Put, publisher: Publisher, exchange: str
) -> None:
    name = f"{exchange}-changing"
    with subscribed(write_letter, "test.kept", "test.gone", consumer=name) as subscription:
        consume(subscription)
        put(1, "test.gone")
        assert {b.pattern for b in Binding.objects.filter(queue=name)} == {"test.kept", "test.gone"}
    with subscribed(write_letter, "test.kept", "test.gone.#", consumer=name) as subscription:
        consume(subscription)
    with subscribed(write_letter, "test.kept", consumer=name) as subscription:
        consume(subscription)
        assert {b.pattern for b in Binding.objects.filter(queue=name)} == {"test.kept"}
        put(1, "test.kept")
        results = send_all(publisher, [[message(exchange, "test.gone")]])
        assert [r.outcome for r in results.values()] == [Outcome.RETURNED]


def test_a_type_without_a_handler_is_kept_and_the_queue_goes_on(put: Put, exchange: str) -> None:
    """The binding is still there for a moment after the code is gone."""
    name = f"{exchange}-bound"
    with subscribed(write_letter, "test.said", "test.old", consumer=name) as subscription:
        declare(subscription)
        put(1, "test.old")
        put(1, "test.said")
    with subscribed(write_letter, "test.said", consumer=name) as subscription:
        assert consume(subscription) == {"undecodable": 1, "handled": 1}
    assert Handling.objects.get().type == "test.old"


def test_order_is_kept_for_an_ordered_consumer_across_failures_and_stops(put: Put, exchange: str) -> None:
    seen: list[int] = []
    stop = Stop()

    def note(message: InboxMessage) -> None:
        if message.payload["n"] == 2 and message.run == 1:
            raise LookupError
        write_letter(message)
        seen.append(message.payload["n"])
        if message.payload["n"] == 4:
            stop.set()

    with subscribed(note, ordered=True) as subscription:
        declare(subscription)
        for n in range(8):
            put(1, body=json.dumps({"n": n}).encode(), headers={"outbox-key": "k", "outbox-attempt": 1})
        consume(subscription, stop=stop, once=False)
        make_due()
        for _ in range(3):
            consume(subscription)
            make_due()
    assert seen == list(range(8))
    assert letters() == 8


def test_the_command_handles_what_is_there_and_reports(put: Put, spawn: Callable[..., Process]) -> None:
    from outbox_core.inbox.registry import subscriptions

    declare(*subscriptions().values())
    put(3, "demo.poison")  # harmless while its switch is off
    put(1, "payments.settled", body=b"not json")
    process = spawn("outbox_consume", "--once", "--json")
    assert process.wait(30) == 0
    assert json.loads(process.output.splitlines()[-1]) == {"handled": 3, "undecodable": 1}
    assert Receipt.objects.filter(consumer="warehouse").count() == 3


def test_the_command_can_be_held_to_some_consumers(put: Put, spawn: Callable[..., Process]) -> None:
    from outbox_core.inbox.registry import subscriptions

    declare(*subscriptions().values())
    put(2, "demo.poison")
    process = spawn("outbox_consume", "--once", "--json", "--consumer", "mail", "--consumer", "orders")
    assert process.wait(30) == 0
    assert json.loads(process.output.splitlines()[-1]) == {}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--consumer", "nobody"], 'no consumer "nobody"'),
        (["--database", "elsewhere"], '"elsewhere" is not in OUTBOX'),
    ],
)
def test_a_name_that_no_one_knows_is_a_usage_error(options: list[str], text: str) -> None:
    with pytest.raises(CommandError, match=text) as raised:
        call_command("outbox_consume", *options)
    assert raised.value.returncode == 2


def test_a_worker_shows_itself_and_leaves_on_sigterm(spawn: Callable[..., Process], wait_until: Any) -> None:
    process = spawn("outbox_consume", "--name", "alpha")
    worker = wait_until(
        lambda: Worker.objects.filter(kind="consumer", name="alpha", broker="connected").first(), 20
    )
    assert (worker.pid, worker.problems) == (process.pid, {})
    assert worker.wakeup in ("notify", "poll", "")
    assert process.end() == 0
    assert not Worker.objects.exists()


def test_a_worker_leaves_when_an_operator_asks(
    spawn: Callable[..., Process], wait_until: Any, outbox_settings: Callable[..., None]
) -> None:
    outbox_settings(HEARTBEAT=0.2)
    process = spawn("outbox_consume", "--name", "alpha")
    wait_until(lambda: Worker.objects.filter(name="alpha").update(drain=True), 20)
    assert process.wait(15) == 0
    assert not Worker.objects.exists()


def test_once_says_that_the_broker_cannot_be_reached(pair: str, outbox_settings: Callable[..., None]) -> None:
    if pair == "embedded":
        pytest.skip("the embedded broker is the database")
    outbox_settings(AMQP_URL="amqp://guest:guest@127.0.0.1:18299/")
    with pytest.raises(CommandError, match="the broker can't be reached") as raised:
        call_command("outbox_consume", "--once", "--consumer", "mail")
    assert raised.value.returncode == 1
