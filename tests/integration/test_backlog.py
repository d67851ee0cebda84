"""`outbox_check_backlog`: what the new code would leave lying."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from outbox_core.clock import database_now
from outbox_core.inbox.registry import forget, subscribe
from outbox_core.models import Binding, Handling, LoopbackDelivery

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def billing() -> Iterator[None]:
    subscribe("order.*", consumer="billing")(lambda message: None)
    yield
    forget("billing")


def run(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("outbox_check_backlog", *arguments, stdout=out)
    except CommandError as error:
        return error.returncode, out.getvalue()
    return 0, out.getvalue()


def kept(consumer: str, type: str, state: str = "retrying") -> None:
    due = database_now() if state == "retrying" else None
    Handling.objects.create(
        consumer=consumer, type=type, body=b"{}", digest="d", state=state, available_at=due
    )


def test_what_the_code_handles_fits() -> None:
    kept("billing", "order.paid")
    kept("gone", "stock.low", "dead")  # a dead one waits for a person, not for code
    assert run() == (0, "The backlog fits this code.\n")


def test_a_consumer_or_a_type_without_code_is_named_with_its_number() -> None:
    kept("gone", "order.paid"), kept("gone", "order.paid", "waiting"), kept("billing", "stock.low")
    code, out = run()
    assert code == 1
    assert (
        "2 received messages of type order.paid wait for consumer gone, which no code subscribes any more."
        in out
    )
    assert "1 received message of type stock.low waits for consumer billing, which has no function" in out


def test_a_queue_that_no_one_consumes_any_more_is_named() -> None:
    Binding.objects.create(queue="billing", exchange="e", pattern="order.*")
    Binding.objects.create(queue="gone", exchange="e", pattern="order.*")
    LoopbackDelivery.objects.create(
        queue="gone", exchange="e", routing_key="r", properties={}, headers={}, body=b""
    )
    code, out = run("--json")
    problems = json.loads(out)["problems"]
    assert (code, problems) == (
        1,
        ["Queue gone was bound by this project, and no code consumes it any more. 1 message is still in it."],
    )
