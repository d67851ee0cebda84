"""What the parts of the shop do when they hear of something: once in effect, however often it is delivered."""

from __future__ import annotations

import os
import signal
import time
import zlib
from decimal import Decimal

from django.db.models import F

from dashboard.demo import faults
from dashboard.demo.models import BasketItem, Letter, Order, Payment
from outbox_core import publish, subscribe
from outbox_core.inbox.message import InboxMessage


class MailRefused(Exception):
    """The mail server did not take a letter."""


@subscribe("catalog.price_changed", consumer="basket", discard_stale=True)
def update_baskets(message: InboxMessage) -> None:
    """Baskets that hold the product show its new price, and the old one beside it."""
    price = Decimal(message.payload["new_price"])
    items = BasketItem.objects.filter(product_id=message.payload["product_id"]).exclude(price=price)
    items.update(old_price=F("price"), price=price)


@subscribe("orders.started", consumer="basket", discard_stale=True)
def clear_basket(message: InboxMessage) -> None:
    """What was ordered leaves the basket; what was put in meanwhile stays."""
    for line in message.payload["lines"]:
        BasketItem.objects.filter(basket=message.payload["basket_id"], product_id=line["product_id"]).delete()


@subscribe("orders.started", consumer="payments")
def take_money(message: InboxMessage) -> None:
    """Take the money and say so. The payment and its message exist together or not at all."""
    slow = faults.switch(faults.SLOW)
    if slow.on:
        time.sleep(slow.amount)
    order_id, amount = message.payload["order_id"], message.payload["total"]
    Payment.objects.create(order_id=order_id, amount=Decimal(amount))
    publish("payments.settled", {"order_id": order_id, "amount": amount}, key=f"order-{order_id}")


@subscribe("payments.settled", consumer="orders")
def mark_paid(message: InboxMessage) -> None:
    """The order is paid, and the buyer is to hear of it."""
    order = Order.objects.select_for_update().get(pk=message.payload["order_id"])
    order.state = "paid"
    order.save(update_fields=["state"])
    publish(
        "orders.paid",
        {
            "order_id": order.pk, "buyer": order.buyer,
            "email": f"{order.buyer.lower()}@shop.example", "total": f"{order.total:.2f}",
        },
        key=f"order-{order.pk}",
    )  # fmt: skip


@subscribe("orders.paid", consumer="mail")
def write_to_buyer(message: InboxMessage) -> None:
    """Send a letter. The mail server fails at every tenth one's first try, and at all while it is broken."""
    if faults.switch(faults.BREAK_MAIL).on:
        raise MailRefused("the mail server refuses everything (it was broken at /demo/)")
    if message.run == 1 and zlib.crc32(message.id.encode()) % 10 == 0:
        raise MailRefused("the mail server did not answer")
    subject = f"Order {message.payload['order_id']} is paid: {message.payload['total']}"
    Letter.objects.create(to=message.payload["email"], subject=subject)


@subscribe("demo.poison", consumer="warehouse")
def swallow_poison(message: InboxMessage) -> None:
    """Kills its own process, as a bug in a C library would, while the switch at /demo/ is on."""
    if faults.switch(faults.POISON).on:
        os.kill(os.getpid(), signal.SIGKILL)
