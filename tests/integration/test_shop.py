"""The demo shop, end to end: business and messages commit together, and each fault shows what it promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from dashboard.demo import faults, shop
from dashboard.demo.models import Basket, BasketItem, Letter, Order, Payment, Product, Switch
from outbox_core.inbox.consumer import ConsumerLoop
from outbox_core.inbox.registry import subscriptions
from outbox_core.models import Duplicate, Handling, Message, Pending, Receipt, Worker
from outbox_core.shutdown import Stop
from outbox_core.transports import transport
from tests.integration.receiving import make_due
from tests.integration.relaying import relay
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def open_shop(exchange: str) -> None:
    assert transport().apply_topology([s.queue for s in subscriptions().values()]) == []
    shop.open_shop()


def consume() -> Counter[str]:
    return ConsumerLoop("default", subscriptions()).run(Stop(), once=True)


def flow() -> Counter[str]:
    """Relay and consume until nothing comes any more."""
    total: Counter[str] = Counter()
    while relay():
        total += consume()
    return total


def first_item() -> BasketItem:
    return Basket.objects.get(buyer=shop.BUYERS[0]).items.first()  # type: ignore[return-value]


def test_opening_the_shop_twice_changes_nothing() -> None:
    before = (Product.objects.count(), Basket.objects.count(), BasketItem.objects.count())
    shop.open_shop()
    assert (Product.objects.count(), Basket.objects.count(), BasketItem.objects.count()) == before
    assert before[:2] == (len(shop.CATALOG), len(shop.BUYERS))
    assert before[2] > 0
    assert not Message.objects.exists()


def test_a_price_change_reaches_the_baskets_that_hold_the_product() -> None:
    item = first_item()
    shop.change_price(item.product_id, "25.00")
    message = Message.objects.get()
    assert (message.type, message.key) == ("catalog.price_changed", f"product-{item.product_id}")
    assert message.payload == (
        f'{{"product_id":{item.product_id},"new_price":"25.00","old_price":"{item.price}"}}'
    )
    assert flow() == {"handled": 1}
    changed = first_item()
    assert (changed.price, changed.old_price) == (Decimal("25.00"), item.price)
    others = BasketItem.objects.exclude(product_id=item.product_id)
    assert not others.filter(old_price__isnull=False).exists()
    shop.accept_prices(changed.basket_id)
    assert first_item().old_price is None


def test_a_price_change_that_rolls_back_is_never_told() -> None:
    item = first_item()

    class Cancelled(Exception):
        pass

    def change_and_cancel() -> None:
        with transaction.atomic():
            shop.change_price(item.product_id, "25.00")
            raise Cancelled

    with pytest.raises(Cancelled):
        change_and_cancel()
    assert Product.objects.get(pk=item.product_id).price == item.price
    assert not Message.objects.exists()


def test_the_same_price_again_is_no_change() -> None:
    item = first_item()
    shop.change_price(item.product_id, item.price)
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    "price", ["", "abc", "0", "-1", "1.001", "NaN", "Infinity", "100000000", "1e99", "9" * 50]
)
def test_what_is_no_price_is_refused(price: str) -> None:
    with pytest.raises(shop.Refused, match="price"):
        shop.change_price(first_item().product_id, price)
    assert not Message.objects.exists()


def test_an_order_is_paid_and_its_buyer_hears_of_it() -> None:
    basket = Basket.objects.get(buyer=shop.BUYERS[0])
    total = basket.total
    order = shop.place_order(basket.pk)
    flow()
    make_due()  # the letter's first try may have failed
    consume()
    order.refresh_from_db()
    assert (order.state, order.total) == ("paid", total)
    assert list(Payment.objects.values_list("order_id", "amount")) == [(order.pk, total)]
    assert Letter.objects.get().to == "ada@shop.example"
    assert not basket.items.exists()
    chain = {m.type: m for m in Message.objects.all()}
    assert set(chain) == {"orders.started", "payments.settled", "orders.paid"}
    assert chain["payments.settled"].causation_id == str(chain["orders.started"].message_id)
    assert chain["orders.paid"].causation_id == str(chain["payments.settled"].message_id)
    assert {m.correlation_id for m in chain.values()} == {chain["orders.started"].correlation_id}


def test_an_empty_basket_cannot_be_ordered() -> None:
    basket = Basket.objects.get(buyer=shop.BUYERS[1])
    with pytest.raises(shop.Refused, match="empty"):
        shop.place_order(basket.pk)
    assert not Order.objects.exists()


@pytest.mark.parametrize("quantity", [0, 100])
def test_a_quantity_outside_its_limits_is_refused(quantity: int) -> None:
    with pytest.raises(shop.Refused, match="1 to 99"):
        shop.add_to_basket("Ada", first_item().product_id, quantity)


def test_a_copy_that_comes_twice_has_one_effect_and_stands_in_the_ledger() -> None:
    basket = Basket.objects.get(buyer=shop.BUYERS[0])
    order = shop.place_order(basket.pk)
    flow()
    started = Message.objects.get(type="orders.started")
    assert str(started.message_id) in faults.deliver_twice(started.message_id)
    assert consume()["duplicate"] == 2  # basket and payments
    assert Payment.objects.filter(order_id=order.pk).count() == 1
    assert set(Duplicate.objects.values_list("consumer", "cause", "same_payload")) == {
        ("basket", "producer", True), ("payments", "producer", True),
    }  # fmt: skip


def test_nothing_is_delivered_twice_before_it_was_once() -> None:
    with pytest.raises(Message.DoesNotExist):
        faults.deliver_twice()
    shop.change_price(first_item().product_id, "25.00")
    with pytest.raises(ValueError, match="not dispatched yet"):
        faults.deliver_twice(Message.objects.get().message_id)
    with pytest.raises(ValueError, match="must be a UUID, not 'abc'"):
        faults.deliver_twice("abc")


def test_without_an_id_the_newest_processed_message_is_delivered_twice() -> None:
    shop.change_price(first_item().product_id, "25.00")
    flow()
    faults.deliver_twice()
    assert consume() == {"duplicate": 1}


def test_an_unroutable_message_retries_and_names_its_type() -> None:
    sentence = faults.publish_unroutable()
    relay()
    pending = Pending.objects.get()
    assert pending.failures >= 1
    assert "demo.nobody_listens" in pending.last_error
    assert str(pending.message.message_id) in sentence


def test_broken_mail_is_kept_with_its_reason_and_heals() -> None:
    faults.break_mail(True)
    shop.place_order(Basket.objects.get(buyer=shop.BUYERS[0]).pk)
    flow()
    row = Handling.objects.get()
    assert (row.consumer, row.state, row.error_class) == ("mail", "retrying", "MailRefused")
    assert not Letter.objects.exists()
    faults.break_mail(False)
    make_due()
    assert consume() == {"handled": 1}
    assert Letter.objects.count() == 1


def test_slow_payments_are_slow_until_they_are_quick_again() -> None:
    assert "0.2 s" in faults.slow_handler(0.2)
    assert faults.switch(faults.SLOW).on
    faults.slow_handler(0)
    assert not faults.switch(faults.SLOW).on
    with pytest.raises(ValueError, match="0 to 5"):
        faults.slow_handler(60)


def test_poison_is_harmless_while_its_switch_is_off() -> None:
    faults.poison()
    faults.cure_poison()
    assert flow() == {"handled": 1}


def test_the_rate_of_traffic_has_limits() -> None:
    faults.set_traffic(7)
    assert faults.switch(faults.TRAFFIC).amount == 7
    with pytest.raises(ValueError, match="0 to 200"):
        faults.set_traffic(1000)
    with pytest.raises(CommandError, match="--rate") as raised:
        call_command("demo_traffic", "--rate", "-1")
    assert raised.value.returncode == 2


def test_traffic_opens_the_shop_trades_and_leaves_within_two_seconds(
    spawn: Callable[..., Process], wait_until: Any
) -> None:
    import time

    Product.objects.all().delete()
    process = spawn("demo_traffic", "--rate", "50", "--seed", "1")
    wait_until(lambda: Message.objects.count() > 20, 30)
    assert Worker.objects.get().kind == "traffic"
    assert Switch.objects.get(name=faults.TRAFFIC).amount == 50
    began = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - began < 2
    assert Product.objects.count() == len(shop.CATALOG)
    assert {"catalog.price_changed"} <= set(Message.objects.values_list("type", flat=True))
    flow()
    assert Receipt.objects.count() >= 20
