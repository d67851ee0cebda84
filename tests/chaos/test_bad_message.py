"""One message that the broker does not take, among hundreds that are in flight with it: it ends dead alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction

from outbox_core import Outgoing, publish_many
from outbox_core.models import Dispatch, FailedAttempt, Message, Parked
from tests.integration.relaying import arrivals, bind, copies, relay

pytestmark = pytest.mark.django_db(transaction=True)

COUNT, PLACE = 500, 250


def publish_with(bad: Outgoing) -> Message:
    """500 in one transaction, the bad one in their middle, each fourth with a key."""
    items = [Outgoing("shop.sold", n, key=f"k{n % 40}" if n % 4 == 0 else "") for n in range(COUNT - 1)]
    with transaction.atomic():
        return publish_many([*items[:PLACE], bad, *items[PLACE:]])[PLACE]


def check(queue: Any, bad: Message, error: str, *words: str) -> None:
    """499 arrived and were not blamed; the bad one is dead and says why."""
    found = arrivals(queue, COUNT - 1)
    assert len(copies(found)) == COUNT - 1
    assert str(bad.message_id) not in copies(found)
    assert Dispatch.objects.count() == COUNT - 1
    parked = Parked.objects.get()
    assert (parked.message_id, parked.state, parked.error_class) == (bad.pk, "dead", error)
    assert all(word in parked.error for word in words), parked.error
    assert set(FailedAttempt.objects.filter(kind="permanent").values_list("message", flat=True)) == {bad.pk}


def test_an_exchange_that_does_not_exist(exchange: str, outbox_settings: Callable[..., None]) -> None:
    outbox_settings(MAX_ATTEMPTS=2, BACKOFF_BASE=0.05)
    queue = bind(exchange)
    bad = publish_with(Outgoing("shop.sold", 0, key="bad", destination=f"{exchange}-missing"))
    assert relay() == COUNT - 1
    check(queue, bad, "ExchangeNotFound", f"{exchange}-missing", "shop.sold")


@pytest.mark.pair("real")
def test_a_header_that_no_frame_holds(exchange: str, amqp: str, outbox_settings: Callable[..., None]) -> None:
    outbox_settings(AMQP_URL=f"{amqp}?frame_max=8192")
    queue = bind(exchange)
    bad = publish_with(Outgoing("shop.sold", 0, headers={"stack": "x" * 10_000}))
    assert relay() == COUNT - 1
    check(queue, bad, "HeadersTooLarge", "8192")
    assert set(copies(arrivals(queue, 0)).values()) == set()
    assert settings.OUTBOX["AMQP_URL"].endswith("8192")


@pytest.mark.pair("real")
def test_a_property_for_which_the_broker_closes_the_channel(
    exchange: str, outbox_settings: Callable[..., None]
) -> None:
    queue = bind(exchange)
    bad = publish_with(Outgoing("shop.sold", 0, headers={"CC": "not a list"}))
    assert relay() == COUNT - 1
    check(queue, bad, "BadProperty", "CC")
