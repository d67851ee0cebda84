"""What happens in the shop: each function is one business transaction, with the message that tells of it inside."""

from __future__ import annotations

import random
from decimal import Decimal, InvalidOperation

from django.db import transaction

from dashboard.demo.models import Basket, BasketItem, Order, Product
from outbox_core import publish

CATALOG = {
    "Enamel mug": "12.00", "Linen apron": "34.50", "Walnut board": "48.00", "Copper kettle": "89.90",
    "Cast-iron pan": "64.00", "Pepper mill": "29.95", "Salt cellar": "14.00", "Wool blanket": "119.00",
    "Reading lamp": "74.00", "Beeswax candle": "8.50", "Bread knife": "42.00", "Tea towel": "9.90",
}  # fmt: skip
BUYERS = ("Ada", "Bruno", "Chiara", "Dmitri", "Elif", "Farah", "Goran", "Hana")
LEAST, MOST = Decimal("0.01"), Decimal("99999999.99")


class Refused(ValueError):
    """The shop does not do that; the text says why, for the person who asked."""


def open_shop() -> None:
    """Make the catalog and a basket for each buyer where they are missing. Commits; idempotent, silent."""
    with transaction.atomic():
        Product.objects.bulk_create(
            [Product(name=name, price=Decimal(price)) for name, price in CATALOG.items()],
            ignore_conflicts=True,
        )
        Basket.objects.bulk_create([Basket(buyer=buyer) for buyer in BUYERS], ignore_conflicts=True)
        products = list(Product.objects.filter(name__in=CATALOG)[:3])
        for basket in Basket.objects.filter(items__isnull=True, buyer=BUYERS[0]):
            for product in products:
                _put(basket, product, 1)


def change_price(product_id: int, price: Decimal | str) -> Product:
    """Catalog: set a product's price and publish `catalog.price_changed`, both or neither. Commits.

    Raises Refused for a price that is none (0.01 to 99,999,999.99, two places) and Product.DoesNotExist. The same
    price again changes and publishes nothing.
    """
    new = parse_price(price)
    with transaction.atomic():
        product = Product.objects.select_for_update().get(pk=product_id)
        old = product.price
        if new == old:
            return product
        product.price = new
        product.save()  # before publish(): it locks the row, so messages of one product have the order of its prices
        publish(
            "catalog.price_changed",
            {"product_id": product.pk, "new_price": f"{new:.2f}", "old_price": f"{old:.2f}"},
            key=f"product-{product.pk}",
        )
    return product


def add_to_basket(buyer: str, product_id: int, quantity: int = 1) -> Basket:
    """Basket: put a product into a buyer's basket, at today's price. Commits; publishes nothing.

    Raises Refused for a quantity outside 1 to 99 and Product.DoesNotExist.
    """
    if not 1 <= quantity <= 99:
        raise Refused(f"quantity must be 1 to 99, not {quantity}")
    with transaction.atomic():
        product = Product.objects.get(pk=product_id)
        basket, _ = Basket.objects.get_or_create(buyer=buyer)
        _put(basket, product, quantity)
    return basket


def accept_prices(basket_id: int) -> None:
    """Basket: the buyer has seen the changed prices, so the old ones are no longer shown. Commits."""
    BasketItem.objects.filter(basket=basket_id).update(old_price=None)


def place_order(basket_id: int) -> Order:
    """Orders: buy what is in a basket and publish `orders.started`, both or neither. Commits.

    The basket is emptied by its own consumer when it hears of the order, and payments take the money.
    Raises Refused for an empty basket and Basket.DoesNotExist.
    """
    with transaction.atomic():
        basket = Basket.objects.select_for_update().get(pk=basket_id)
        lines = [
            {"product_id": item.product_id, "quantity": item.quantity, "price": f"{item.price:.2f}"}
            for item in basket.items.all()
        ]
        if not lines:
            raise Refused(f"the basket of {basket.buyer} is empty")
        order = Order.objects.create(buyer=basket.buyer, basket_id=basket.pk, total=basket.total)
        publish(
            "orders.started",
            {
                "order_id": order.pk, "basket_id": basket.pk, "buyer": order.buyer,
                "email": f"{order.buyer.lower()}@shop.example", "total": f"{order.total:.2f}", "lines": lines,
            },
            key=f"order-{order.pk}",
        )  # fmt: skip
    return order


def nudge_price(rng: random.Random) -> Product:
    """Catalog: change a random product's price by up to a fifth, as a merchant would. Commits."""
    product = rng.choice(list(Product.objects.all()))
    factor = Decimal(rng.randint(80, 120)) / 100
    price = (product.price * factor).quantize(Decimal("0.01"))
    listed = Decimal(CATALOG.get(product.name, product.price))
    return change_price(product.pk, min(max(price, listed / 2), listed * 2).quantize(Decimal("0.01")))


def parse_price(price: Decimal | str) -> Decimal:
    """A price as a person typed it. Raises Refused, naming the limit."""
    try:
        value = Decimal(str(price).strip().replace(",", "."))
    except InvalidOperation:
        raise Refused(f"price must be a number like 25.00, not {str(price)[:40]!r}") from None
    if not value.is_finite() or not LEAST <= value <= MOST:
        raise Refused(f"price must be {LEAST} to {MOST}, not {str(price)[:40]}")
    if value != value.quantize(Decimal("0.01")):
        raise Refused(f"price has two decimal places, not {str(price)[:40]}")
    return value.quantize(Decimal("0.01"))


def _put(basket: Basket, product: Product, quantity: int) -> None:
    item, made = BasketItem.objects.get_or_create(
        basket=basket, product_id=product.pk,
        defaults={"product_name": product.name, "price": product.price, "quantity": quantity},
    )  # fmt: skip
    if not made:
        item.quantity = min(99, item.quantity + quantity)
        item.save(update_fields=["quantity"])
