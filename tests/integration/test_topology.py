"""The broker's queues and bindings against those of the code, on both transports, and the command for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pika
import pytest
from django.core.management import CommandError, call_command

from outbox_core.errors import TransportError
from outbox_core.inbox import registry
from outbox_core.models import Binding
from outbox_core.transports import transport
from outbox_core.transports.base import Difference, Outcome, Queue, Transport
from outbox_core.transports.rabbitmq import RabbitMQ
from tests.integration.carrying import contents, message, send_all, until_usable
from tests.processes import free_port

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def broker(exchange: str) -> Transport:
    return transport()


@pytest.fixture
def subscribed(exchange: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """`subscribed(*types)`: the name of a consumer of these types, the only one there is; again with other types."""
    name = f"{exchange}-shop"
    before = registry.subscriptions()
    for consumer in before:
        registry.forget(consumer)

    def change(*types: str, **options: Any) -> str:
        registry.forget(name)
        registry.subscribe(*types, consumer=name, **options)(lambda message: None)
        return name

    yield change
    registry.forget(name)
    registry._subscriptions.update(before)


def run(*arguments: str) -> tuple[int, str]:
    """The exit code and the output of `outbox_topology`."""
    out = StringIO()
    try:
        call_command("outbox_topology", *arguments, stdout=out)
    except CommandError as error:
        return error.returncode, out.getvalue()
    return 0, out.getvalue()


def outcome_of(broker: Transport, exchange: str, type: str) -> Outcome:
    publisher = broker.publisher()
    publisher.open()
    try:
        until_usable(publisher)
        return send_all(publisher, [[message(exchange, type)]]).popitem()[1].outcome
    finally:
        publisher.close()


def test_what_is_missing_is_named_and_a_check_creates_nothing(broker: Transport, exchange: str) -> None:
    queues = [Queue(f"{exchange}-a", ("shop.*",)), Queue(f"{exchange}-b", ("shop.*",))]
    assert broker.apply_topology(queues[:1]) == []
    for _ in range(2):
        missing = broker.check_topology(queues)
        assert {d.name for d in missing} == {f"{exchange}-b"}
        assert {d.kind for d in missing} <= {"queue", "binding"}
    assert broker.check_topology(queues[:1]) == []


def test_applying_is_idempotent_and_keeps_what_is_in_the_queues(broker: Transport, exchange: str) -> None:
    queue = Queue(f"{exchange}-a", ("shop.*", "yard.#"))
    assert broker.apply_topology([queue]) == []
    assert outcome_of(broker, exchange, "yard.a.b") is Outcome.CONFIRMED
    assert broker.apply_topology([queue]) == []
    assert len(contents(broker, queue)) == 1


def test_a_queue_that_differs_is_named_and_the_others_are_made(broker: Transport, exchange: str) -> None:
    plain, other = Queue(f"{exchange}-a", ("shop.*",)), Queue(f"{exchange}-b", ("shop.*",))
    assert broker.apply_topology([plain]) == []
    single = Queue(plain.name, plain.patterns, single_active=True)
    [left] = broker.apply_topology([single, other])
    assert (left.kind, left.name) == ("queue", plain.name)
    assert "single" in left.detail
    assert broker.check_topology([other]) == []
    [found] = broker.check_topology([single])
    assert (found.kind, found.name) == ("queue", plain.name)


def test_a_pattern_that_is_gone_is_unbound_and_no_other(broker: Transport, exchange: str) -> None:
    queue = Queue(f"{exchange}-a", ("shop.*", "yard.*"))
    assert broker.apply_topology([queue]) == []
    kept = Queue(queue.name, ("shop.*",))
    for _ in range(2):  # unbinding what is not bound is no error
        assert broker.apply_topology([kept], [(queue.name, "yard.*"), (f"{exchange}-never", "x")]) == []
    assert outcome_of(broker, exchange, "yard.sold") is Outcome.RETURNED
    assert outcome_of(broker, exchange, "shop.sold") is Outcome.CONFIRMED


def test_the_command_checks_applies_and_unbinds_what_the_code_has_left(
    broker: Transport, exchange: str, subscribed: Callable[..., str]
) -> None:
    name = subscribed("shop.*", "yard.*")
    code, output = run("--check", "--json")
    report = json.loads(output)
    assert code == 1
    assert report["exchange"] == exchange
    assert ("queue", name) in {(d["kind"], d["name"]) for d in report["differences"]}
    assert run("--apply")[0] == 0
    assert run("--check") == (0, f'The broker agrees with the code (exchange "{exchange}").\n')
    assert set(Binding.objects.values_list("queue", "exchange", "pattern")) == {
        (name, exchange, "shop.*"), (name, exchange, "yard.*"),
    }  # fmt: skip
    subscribed("shop.*")
    code, output = run("--check")
    assert code == 1
    assert "yard.*" in output
    assert outcome_of(broker, exchange, "yard.sold") is Outcome.CONFIRMED  # a check unbinds nothing
    assert json.loads(run("--apply", "--json")[1])["differences"] == []
    assert outcome_of(broker, exchange, "yard.sold") is Outcome.RETURNED
    assert run("--check")[0] == 0
    assert list(Binding.objects.values_list("pattern", flat=True)) == ["shop.*"]


def test_a_subscription_that_was_never_applied_is_a_difference(
    exchange: str, subscribed: Callable[..., str]
) -> None:
    subscribed("shop.*")
    assert run("--apply")[0] == 0
    name = subscribed("shop.*", "yard.*")
    code, output = run("--check")
    assert code == 1
    assert name in output
    assert "yard.*" in output


def test_the_command_needs_to_know_what_to_do_and_where(subscribed: Callable[..., str]) -> None:
    with pytest.raises(CommandError):
        call_command("outbox_topology")
    with pytest.raises(CommandError):
        call_command("outbox_topology", "--check", "--apply")
    assert run("--check", "--database", "elsewhere")[0] == 2


@pytest.mark.pair("real")
def test_an_exchange_of_another_type_is_named_with_both_types(amqp: str, exchange: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqp))
    connection.channel().exchange_declare(exchange, "fanout", durable=True)
    broker = RabbitMQ(amqp, exchange)
    for found in (broker.check_topology([]), broker.apply_topology([])):
        [difference] = found
        assert (difference.kind, difference.name) == ("exchange", exchange)
        assert "topic" in difference.detail
        assert "fanout" in difference.detail
    connection.close()


@pytest.mark.pair("real")
def test_a_missing_exchange_is_a_difference(amqp: str, exchange: str) -> None:
    assert RabbitMQ(amqp, exchange).check_topology([]) == [Difference("exchange", exchange, "does not exist")]


@pytest.mark.pair("real")
def test_a_broker_that_cannot_be_reached_is_one_error_without_the_password(
    exchange: str, outbox_settings: Callable[..., None], subscribed: Callable[..., str]
) -> None:
    url = f"amqp://guest:a-secret@127.0.0.1:{free_port()}/"
    with pytest.raises(TransportError, match="can't be reached") as caught:
        RabbitMQ(url, exchange).check_topology([])
    assert "a-secret" not in str(caught.value)
    subscribed("shop.*")
    outbox_settings(AMQP_URL=url)
    assert run("--apply")[0] == 1
    assert not Binding.objects.exists()
