"""The shop's own data. Catalog, basket and orders share one database here, but know each other by messages only:
a basket keeps the product's number, name and price as it heard them, and no foreign key leads across.
"""

from __future__ import annotations

from decimal import Decimal

from django.core.validators import MinValueValidator
from django.db import models


class Product(models.Model):
    """Catalog: something to buy."""

    name = models.CharField(max_length=100, unique=True)
    price = models.DecimalField(
        max_digits=10, decimal_places=2, validators=[MinValueValidator(Decimal("0.01"))]
    )
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.name} at {self.price}"


class Basket(models.Model):
    """Basket: what a buyer has put aside."""

    buyer = models.CharField(max_length=100, unique=True)

    class Meta:
        ordering = ["buyer"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"basket of {self.buyer}"

    @property
    def total(self) -> Decimal:
        return sum((item.cost for item in self.items.all()), Decimal("0.00"))


class BasketItem(models.Model):
    """A product in a basket. `old_price` stands while the buyer has not seen that the price changed."""

    basket = models.ForeignKey(Basket, models.CASCADE, related_name="items")
    product_id = models.BigIntegerField(db_index=True)
    product_name = models.CharField(max_length=100)
    price = models.DecimalField(max_digits=10, decimal_places=2)
    old_price = models.DecimalField(max_digits=10, decimal_places=2, null=True)
    quantity = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["product_name"]
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["basket", "product_id"], name="demo_item_once")]

    def __str__(self) -> str:
        return f"{self.quantity} x {self.product_name}"

    @property
    def cost(self) -> Decimal:
        return self.price * self.quantity


class Order(models.Model):
    """Orders: what was bought. Payments answer by message, and make it paid."""

    buyer = models.CharField(max_length=100)
    basket_id = models.BigIntegerField()
    total = models.DecimalField(max_digits=10, decimal_places=2)
    state = models.CharField(max_length=10, default="started", choices=[(s, s) for s in ("started", "paid")])
    placed_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"order {self.pk} of {self.buyer}: {self.state}"


class Payment(models.Model):
    """Payments: money taken. Two rows for one order would be the double charge that an inbox prevents."""

    order_id = models.BigIntegerField(db_index=True)
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    taken_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.amount} for order {self.order_id}"


class Letter(models.Model):
    """Mail: what was sent to a buyer."""

    to = models.CharField(max_length=100)
    subject = models.CharField(max_length=200)
    sent_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.subject} to {self.to}"


class Switch(models.Model):
    """What the operator has set at /demo/: a fault that is on, or a number. Every process reads it here."""

    name = models.CharField(max_length=40, primary_key=True)
    on = models.BooleanField(default=False)
    amount = models.FloatField(default=0)

    class Meta:
        verbose_name_plural = "switches"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.name} {'on' if self.on else 'off'} {self.amount:g}"
