"""From the commit on: a message survives its producer, is relayed soon, and looks on the wire as documented."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from outbox_core import publish
from outbox_core.conf import settings
from outbox_core.models import Dispatch, Lease, Message, Pending
from tests.integration.relaying import arrivals, bind, relay, settled
from tests.processes import Process, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_message_survives_a_producer_that_is_killed_right_after_its_commit(
    exchange: str, spawn: Callable[..., Process]
) -> None:
    queue = bind(exchange)
    assert spawn("publish_and_die").wait(30) == -9
    assert Group.objects.filter(name="order 7").exists()
    assert Pending.objects.get().type == "orders.placed"
    assert relay() == 1
    assert arrivals(queue, 1)[0].body == b'{"order_id":7}'


def test_messages_are_at_the_broker_within_two_poll_intervals_of_their_commit(
    exchange: str, spawn: Callable[..., Process]
) -> None:
    bind(exchange)
    spawn("outbox_dispatch")
    wait_until(Lease.objects.exists, 20)
    for n in range(100):
        with transaction.atomic():
            publish("t", n)
    wait_until(settled, 20)
    rows = Dispatch.objects.values_list("at", "message__created_at")
    waits = sorted((at - created).total_seconds() for at, created in rows)
    assert len(waits) == 100
    assert waits[94] < 2 * settings.POLL_INTERVAL


def test_each_type_has_its_documented_form_on_the_wire(exchange: str) -> None:
    queue = bind(exchange)
    said = {
        "decimal": Decimal("1.10"),
        "aware": datetime(2026, 3, 1, 12, 0, tzinfo=timezone(timedelta(hours=-3))),
        "utc": datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC),
        "date": date(2026, 3, 1),
        "duration": timedelta(days=1, hours=2, minutes=3, seconds=4),
        "uuid": UUID("0197c1f2-8a40-7b1e-9c55-0f6f5a1f2d11"),
        "whole": 9007199254740993,
        "text": "six characters: \\u0000, and Zoë 😀",
    }
    with transaction.atomic():
        publish("t", said)
    assert relay() == 1
    body = arrivals(queue, 1)[0].body.decode()
    assert '"decimal":1.10,' in body  # a number with its digits
    assert '"whole":9007199254740993,' in body
    assert "Zoë 😀" in body
    assert json.loads(body) == {
        "decimal": 1.1,
        "aware": "2026-03-01T12:00:00-03:00",
        "utc": "2026-03-01T12:00:00.250000+00:00",
        "date": "2026-03-01",
        "duration": "P1DT02H03M04S",
        "uuid": "0197c1f2-8a40-7b1e-9c55-0f6f5a1f2d11",
        "whole": 9007199254740993,
        "text": "six characters: \\u0000, and Zoë 😀",
    }
    assert Message.objects.get().payload == body
