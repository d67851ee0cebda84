"""A consumer that is killed at the worst moment: no effect is lost, none happens twice, and poison ends dead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dashboard.demo import faults, shop
from dashboard.demo.models import Basket, BasketItem, Order, Payment
from outbox_core.inbox.registry import subscriptions
from outbox_core.models import Duplicate, FailedAttempt, Handling, Message, Receipt
from outbox_core.transports import transport
from tests.chaos.mischief import free_loopback_deliveries
from tests.integration.receiving import make_due
from tests.integration.relaying import relay
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)

Spawn = Callable[..., Process]


@pytest.fixture(autouse=True)
def open_shop(exchange: str) -> None:
    assert transport().apply_topology([s.queue for s in subscriptions().values()]) == []
    shop.open_shop()


def orders(count: int) -> None:
    """That many orders, in the queues of the consumers."""
    product = BasketItem.objects.first()
    assert product is not None
    for _ in range(count):
        basket = Basket.objects.get(buyer=shop.BUYERS[1])
        shop.add_to_basket(basket.buyer, product.product_id)
        shop.place_order(basket.pk)
        basket.items.all().delete()
    relay()


def crash(spawn: Spawn, point: str, *arguments: str) -> None:
    """Run payments until the process dies at the crash point."""
    process = spawn(
        "outbox_consume", "--consumer", "payments", *arguments,
        env={"OUTBOX_CRASH_AT": point, "OUTBOX_ALLOW_CRASH": "1"},
    )  # fmt: skip
    assert process.wait(30) == -9
    free_loopback_deliveries()


def finish(spawn: Spawn, *consumers: str) -> None:
    process = spawn("outbox_consume", "--once", *(word for c in consumers for word in ("--consumer", c)))
    assert process.wait(60) == 0, process.output


@pytest.mark.parametrize("point", ["receipt", "handled", "committed", "acked"])
@pytest.mark.parametrize("passage", [1, 3])
def test_a_crash_loses_nothing_and_repeats_no_effect(spawn: Spawn, point: str, passage: int) -> None:
    orders(5)
    crash(spawn, f"{point}:{passage}" if point != "acked" else point)
    finish(spawn, "payments")
    paid = list(Payment.objects.values_list("order_id", flat=True))
    assert sorted(paid) == sorted(Order.objects.values_list("id", flat=True))
    assert Receipt.objects.filter(consumer="payments", outcome="processed").count() == 5
    assert Message.objects.filter(type="payments.settled").count() == 5
    assert not Handling.objects.exists()
    assert set(Duplicate.objects.values_list("cause", flat=True)) <= {"redelivered"}
    if point == "committed":
        assert Duplicate.objects.count() >= 1  # committed and not acked: it came again, and had no effect
    if point in ("receipt", "handled") and passage == 1:
        assert not Duplicate.objects.exists()


def test_what_a_handler_published_before_a_crash_is_sent_without_running_it_again(spawn: Spawn) -> None:
    orders(1)
    crash(spawn, "committed")
    assert Payment.objects.count() == 1
    relay()  # the dispatcher sends what the handler published
    finish(spawn, "payments", "orders")
    assert Payment.objects.count() == 1
    assert Order.objects.get().state == "paid"


def test_a_message_that_kills_its_process_ends_dead_and_the_rest_flows(
    spawn: Spawn, outbox_settings: Callable[..., None]
) -> None:
    outbox_settings(MAX_ATTEMPTS=3)
    faults.poison()
    orders(3)
    relay()
    deaths = 0
    for _ in range(12):
        process = spawn("outbox_consume", "--once")
        code = process.wait(60)
        if code == 0:
            if Handling.objects.filter(state="dead").exists():
                break
        else:
            assert code == -9, process.output
            deaths += 1
        free_loopback_deliveries()
        make_due()
    dead = Handling.objects.get(consumer="warehouse")
    assert (dead.state, dead.failures, dead.error_class) == ("dead", 3, "ProcessDied")
    assert deaths == 4  # the first delivery, and three runs that counted
    assert FailedAttempt.objects.filter(consumer="warehouse", error_class="ProcessDied").count() == 3
    assert Payment.objects.count() == 3
    assert not Handling.objects.exclude(consumer="warehouse").filter(failures__gt=1).exists()


def test_a_consumer_that_lost_its_database_goes_on_when_it_is_back(
    private_postgres: Any, spawn: Spawn, wait_until: Any
) -> None:
    transport().apply_topology([s.queue for s in subscriptions().values()])
    shop.open_shop()
    orders(1)
    process = spawn("outbox_consume", "--consumer", "payments")
    wait_until(lambda: Payment.objects.count() == 1, 30)
    private_postgres.stop()
    time.sleep(1)  # let it notice, also while nothing is delivered
    assert process.running
    private_postgres.start()
    wait_until(_database_answers, 30)
    orders(4)
    wait_until(lambda: Payment.objects.count() == 5, 30)
    assert process.running
    assert process.end() == 0
    assert not Handling.objects.exists()


def _database_answers() -> bool:
    from django.db import DatabaseError, connection

    try:
        connection.close()
        return Order.objects.exists() or True
    except DatabaseError:
        return False
