"""The page that causes things: each act says what to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages as notes
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import answers
from dashboard.demo import faults, shop
from dashboard.demo.models import Basket, Letter, Order, Product
from dashboard.filters import store
from dashboard.permissions import OPERATE, VIEW, allows, requires
from outbox_core.errors import OutboxError
from outbox_core.models import Message
from outbox_core.wakeup import CHANGED, announce


@requires(VIEW)
@require_safe
def demo(request: HttpRequest) -> HttpResponse:
    """The shop: products, baskets, the latest orders and letters, and the faults that can be caused."""
    context = {
        "products": Product.objects.all(),
        "baskets": Basket.objects.filter(items__isnull=False).distinct().prefetch_related("items")[:8],
        "orders": Order.objects.all()[:6],
        "letters": Letter.objects.all()[:4],
        "mail": faults.switch(faults.BREAK_MAIL),
        "slow": faults.switch(faults.SLOW),
        "poison": faults.switch(faults.POISON),
        "traffic": faults.switch(faults.TRAFFIC),
        "fastest": faults.FASTEST_TRAFFIC,
        "slowest": faults.SLOWEST,
        "may_act": allows(request.user, OPERATE),
    }
    return answers.page(request, "demo", context, lambda: _json(context))


@requires(OPERATE)
@require_POST
def act(request: HttpRequest, name: str) -> HttpResponse:
    """One act of `ACTS`; what it refuses is said, and changes nothing."""
    try:
        text, level, status = ACTS[name](request.POST), "ok", 200
        announce(store(), CHANGED)
    except (
        ValueError,
        OutboxError,
        Product.DoesNotExist,
        Basket.DoesNotExist,
        Message.DoesNotExist,
    ) as refused:
        text, level, status = str(refused), "bad", 422
    if answers.wants_json(request):
        return answers.json_answer({"outcome": "done" if level == "ok" else "refused", "text": text}, status)
    if answers.is_htmx(request):
        answer = render(request, "outboard/toast.html", {"level": level, "text": text}, status=status)
        answer["HX-Trigger-After-Swap"] = "outboard:want"
        return answer
    (notes.success if level == "ok" else notes.error)(request, text)
    answer = redirect("demo:demo")
    answer.status_code = 303
    return answer


def _price(form: QueryDict) -> str:
    product = shop.change_price(_number(form, "product"), form.get("price", ""))
    return _(
        "%(name)s costs %(price)s. Look at Messages: catalog.price_changed goes from pending to dispatched, "
        "and the baskets below follow."
    ) % {
        "name": product.name,
        "price": product.price,
    }


def _basket(form: QueryDict) -> str:
    basket = shop.add_to_basket(form.get("buyer", "")[:100] or shop.BUYERS[0], _number(form, "product"))
    return (
        _("It is in the basket of %s. Change its price and watch the old one stay beside the new one.")
        % basket.buyer
    )


def _accept(form: QueryDict) -> str:
    shop.accept_prices(_number(form, "basket"))
    return _("The buyer has seen the new prices.")


def _order(form: QueryDict) -> str:
    order = shop.place_order(_number(form, "basket"))
    return (
        _(
            "Order %d is placed. Look at Messages: orders.started causes payments.settled, and that orders.paid; "
            "each page names what caused it."
        )
        % order.pk
    )


def _number(form: QueryDict, name: str) -> int:
    text = form.get(name, "")
    if not text.isdecimal() or len(text) > 18:
        raise ValueError(
            _("%(name)s must be a number, not %(actual)s") % {"name": name, "actual": text[:40] or "nothing"}
        )
    return int(text)


def _amount(form: QueryDict, name: str) -> float:
    try:
        return float(form.get(name, ""))
    except ValueError:
        raise ValueError(_("%s must be a number") % name) from None


ACTS: dict[str, Callable[[QueryDict], str]] = {
    "prices": _price,
    "baskets": _basket,
    "acceptances": _accept,
    "orders": _order,
    "copies": lambda form: faults.deliver_twice(form.get("message") or None),
    "unroutable": lambda form: faults.publish_unroutable(),
    "mail": lambda form: faults.break_mail(form.get("on") == "1"),
    "slowness": lambda form: faults.slow_handler(_amount(form, "seconds")),
    "poison": lambda form: faults.poison(),
    "cures": lambda form: faults.cure_poison(),
    "traffic": lambda form: faults.set_traffic(_amount(form, "rate")),
}
"""The acts by the last part of their address."""


def _json(context: dict[str, Any]) -> dict[str, Any]:
    return {
        "products": [{"id": p.pk, "name": p.name, "price": p.price} for p in context["products"]],
        "baskets": [
            {
                "id": b.pk,
                "buyer": b.buyer,
                "total": b.total,
                "items": [
                    {
                        "product_id": i.product_id,
                        "name": i.product_name,
                        "price": i.price,
                        "old_price": i.old_price,
                        "quantity": i.quantity,
                    }
                    for i in b.items.all()
                ],
            }
            for b in context["baskets"]
        ],
        "orders": [
            {"id": o.pk, "buyer": o.buyer, "total": o.total, "state": o.state} for o in context["orders"]
        ],
        "switches": {
            s.name: {"on": s.on, "amount": s.amount}
            for s in map(context.__getitem__, ("mail", "slow", "poison", "traffic"))
        },
    }
