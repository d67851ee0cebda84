"""One message that the broker does not take, among hundreds that are in flight with it: it ends dead alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from outbox_core import Outgoing, publish_many
from outbox_core.models import Dispatch, FailedAttempt, Message, Parked
from outbox_core.transports.base import Delivery
from tests.integration.relaying import arrivals, bind, copies, relay

pytestmark = pytest.mark.django_db(transaction=True)

COUNT, PLACE = 500, 250


def publish_with(bad: Outgoing) -> Message:
    """500 in one transaction, the bad one in their middle, each fourth with a key."""
    items = [Outgoing("shop.sold", n, key=f"k{n % 40}" if n % 4 == 0 else "") for n in range(COUNT - 1)]
    with transaction.atomic():
        return publish_many([*items[:PLACE], bad, *items[PLACE:]])[PLACE]


def check(queue: Any, bad: Message, error: str, *words: str) -> list[Delivery]:
    """499 arrived and were not blamed; the bad one is dead and says why. Returns what arrived."""
    found = arrivals(queue, COUNT - 1)
    assert len(copies(found)) == COUNT - 1
    assert str(bad.message_id) not in copies(found)
    assert Dispatch.objects.count() == COUNT - 1
    parked = Parked.objects.get()
    assert (parked.message_id, parked.state, parked.error_class) == (bad.pk, "dead", error)
    assert all(word in parked.error for word in words), parked.error
    assert set(FailedAttempt.objects.filter(kind="permanent").values_list("message", flat=True)) == {bad.pk}
    return found


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


@pytest.mark.pair("real")
def test_a_property_for_which_the_broker_closes_the_channel(
    exchange: str, outbox_settings: Callable[..., None]
) -> None:
    queue = bind(exchange)
    bad = publish_with(Outgoing("shop.sold", 0, headers={"CC": "not a list"}))
    assert relay() == COUNT - 1
    check_repeats(check(queue, bad, "BadProperty", "CC"))


def check_repeats(found: list[Delivery]) -> None:
    """Those that were unconfirmed beside it were sent again: with their id, and an attempt that says so."""
    attempts: dict[str, list[int]] = defaultdict(list)
    for delivery in found:
        attempts[str(delivery.message_id)].append(delivery.headers["outbox-attempt"])
    assert {tuple(numbers) for numbers in attempts.values()} <= {(1,), (2,), (1, 2)}
    rows = {str(m.message_id): m.pk for m in Message.objects.all()}
    confirmed = dict(Dispatch.objects.values_list("message", "attempt"))
    assert {rows[id_]: numbers[-1] for id_, numbers in attempts.items()} == confirmed
    again = {message for message, attempt in confirmed.items() if attempt == 2}
    assert again
    maybe = FailedAttempt.objects.filter(kind="unknown", attempt=1).exclude(
        message__in=Parked.objects.values("message")
    )
    assert set(maybe.values_list("message", flat=True)) == again
    assert set(Dispatch.objects.filter(message__in=again).values_list("cause", flat=True)) == {"resend"}
