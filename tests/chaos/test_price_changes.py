"""The price example end to end, with the relay killed in the middle: baskets change once, and each surplus copy is
in the ledger as a resend."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction

from dashboard.demo.models import Basket, BasketItem, Payment, Product
from outbox_core import Outgoing, publish_many
from outbox_core.inbox.registry import subscriptions
from outbox_core.models import Dispatch, Duplicate, FailedAttempt, Handling, Message, Receipt
from outbox_core.transports import transport
from tests.integration.relaying import settled
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)

PRODUCTS = 50


@pytest.fixture(autouse=True)
def a_basket_with_every_product(exchange: str) -> None:
    assert transport().apply_topology([s.queue for s in subscriptions().values()]) == []
    basket = Basket.objects.create(buyer="Ada")
    for n in range(PRODUCTS):
        product = Product.objects.create(name=f"product {n}", price=Decimal("1.00"))
        BasketItem.objects.create(
            basket=basket, product_id=product.pk, product_name=product.name, price=product.price
        )


def change_prices(rounds: int) -> None:
    """`rounds` changes of each product's price, in one transaction: to 2.00, 3.00, ..."""
    products = list(Product.objects.all())
    with transaction.atomic():
        publish_many(
            Outgoing(
                "catalog.price_changed",
                {"product_id": p.pk, "old_price": f"{n + 1}.00", "new_price": f"{n + 2}.00"},
                key=f"product-{p.pk}",
            )
            for n in range(rounds)
            for p in products
        )


def start_orders(count: int) -> None:
    """`count` orders, of which each payment is an effect that can be counted."""
    with transaction.atomic():
        publish_many(
            Outgoing(
                "orders.started",
                {"order_id": n, "basket_id": 0, "total": "1.00", "lines": []},
                key=f"order-{n}",
            )
            for n in range(count)
        )


@pytest.mark.parametrize("point", ["published", "confirmed"])
def test_a_relay_killed_in_the_middle_causes_resends_and_no_second_effect(
    point: str,
    exchange: str,
    spawn: Callable[..., Process],
    wait_until: Any,
    scale: Any,
    outbox_settings: Any,
) -> None:
    outbox_settings(LEASE=2, HEARTBEAT=0.4, BATCH_SIZE=200, WINDOW=200)
    rounds = max(8, scale(100))
    count = rounds * PRODUCTS
    change_prices(rounds)
    killed = spawn("outbox_dispatch", env={"OUTBOX_ALLOW_CRASH": "1", "OUTBOX_CRASH_AT": f"{point}:2"})
    assert killed.wait(60) == -9
    spawn("outbox_consume", "--consumer", "basket")
    spawn("outbox_dispatch")
    wait_until(settled, 180)
    wait_until(lambda: Receipt.objects.filter(consumer="basket").count() == count, 240)
    maybe = FailedAttempt.objects.filter(kind="unknown").count()
    wait_until(Duplicate.objects.exists, 30)

    assert Dispatch.objects.count() == count
    assert set(Receipt.objects.values_list("outcome", flat=True)) == {"processed"}
    assert 1 <= Duplicate.objects.count() <= maybe
    assert set(Duplicate.objects.values_list("cause", "same_payload", "consumer")) == {
        ("resend", True, "basket")
    }
    assert set(Duplicate.objects.values_list("message_id", flat=True)) <= {
        str(m) for m in Message.objects.values_list("message_id", flat=True)
    }
    assert set(Duplicate.objects.values_list("attempt", flat=True)) == {2}
    prices = set(BasketItem.objects.values_list("price", "old_price"))
    assert prices == {(Decimal(rounds + 1), Decimal(rounds))}
    assert not Handling.objects.exists()


def test_a_payment_is_taken_once_however_often_its_order_is_sent(
    exchange: str, spawn: Callable[..., Process], wait_until: Any, scale: Any, outbox_settings: Any
) -> None:
    outbox_settings(LEASE=2, HEARTBEAT=0.4, BATCH_SIZE=100, WINDOW=100)
    count = max(300, scale(2000))
    start_orders(count)
    killed = spawn("outbox_dispatch", env={"OUTBOX_ALLOW_CRASH": "1", "OUTBOX_CRASH_AT": "confirmed:2"})
    assert killed.wait(60) == -9
    spawn("outbox_consume", "--consumer", "payments")
    spawn("outbox_dispatch")
    wait_until(lambda: Payment.objects.count() >= count, 180)
    wait_until(settled, 60)
    wait_until(lambda: Duplicate.objects.filter(cause="resend", consumer="payments").exists(), 30)
    assert sorted(Payment.objects.values_list("order_id", flat=True)) == list(range(count))
    assert Message.objects.filter(type="payments.settled").count() == count
