"""The demo's steady trickle of business: prices change, baskets fill, orders are placed, a copy comes twice."""

from __future__ import annotations

import logging
import random
import time
from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, connection, reset_queries

from dashboard.demo import faults, shop
from dashboard.demo.models import Basket, Product, Switch
from outbox_core.errors import TransportError
from outbox_core.heartbeat import Heartbeat
from outbox_core.models import Message
from outbox_core.shutdown import Stop, stop_on_signals

log = logging.getLogger("demo.traffic")

RATE = 2.5  # messages a second, unless the switch says otherwise
NAP = 0.5  # seconds between two looks at the switch, at most
LATER = 1.0  # seconds to wait when the database is away
TWICE = 0.01  # how often a copy is delivered twice
ORDER, FILL = 0.08, 0.14  # how often an order is placed, a basket filled; else a price changes


class Command(BaseCommand):
    help = "Publish the demo shop's traffic until SIGTERM or SIGINT. The slider at /demo/ changes its rate."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--rate", type=float, help=f"messages a second (default: as set at /demo/, else {RATE:g})"
        )
        parser.add_argument("--name", default="", help="the worker's name (default: host and process id)")
        parser.add_argument("--seed", type=int, help="of the random choices, for a repeatable run")

    def handle(self, *args: Any, **options: Any) -> None:
        with (
            stop_on_signals(grace=2.0) as stop,
            Heartbeat("default", "traffic", options["name"], stop=stop) as beat,
        ):
            try:
                _set_rate(options["rate"])
            except ValueError as error:
                raise CommandError(f"--rate: {error}", returncode=2) from None
            run(stop, beat, random.Random(options["seed"]))


def run(stop: Stop, beat: Heartbeat, rng: random.Random) -> None:
    """Trade until `stop`, at the switch's rate. While the database or the broker is away, wait and go on."""
    ready = False
    while not stop.is_set():
        began = time.monotonic()
        try:
            if not ready:
                shop.open_shop()
                ready = True
            rate = faults.switch(faults.TRAFFIC).amount
            if rate > 0:
                trade(rng)
                beat.count()
        except (DatabaseError, InterfaceError, TransportError) as error:
            log.warning("The shop waits: %s", error, extra={"action": "traffic_paused"})
            connection.close()
            stop.wait(LATER)
            continue
        reset_queries()
        took = time.monotonic() - began
        # SQLite has one writer, whose queue is not fair: others get at least as long as this took.
        stop.wait(max(took, rng.expovariate(rate) - took) if rate > 0 else NAP)


def trade(rng: random.Random) -> None:
    """One step of business, and now and then a second copy of what was processed before."""
    chance = rng.random()
    if chance < ORDER:
        baskets = list(Basket.objects.filter(items__isnull=False).distinct())
        if baskets:
            _order(rng.choice(baskets))
            return
    if chance < ORDER + FILL:
        product = rng.choice(list(Product.objects.all()))
        shop.add_to_basket(rng.choice(shop.BUYERS), product.pk, rng.randint(1, 3))
    else:
        shop.nudge_price(rng)
    if rng.random() < TWICE:
        with suppress(Message.DoesNotExist):  # nothing was processed yet
            faults.deliver_twice()


def _order(basket: Basket) -> None:
    with suppress(shop.Refused):  # its consumer emptied it in this moment
        shop.place_order(basket.pk)


def _set_rate(given: float | None) -> None:
    if given is not None:
        faults.set_traffic(given)
    elif not Switch.objects.filter(name=faults.TRAFFIC).exists():
        faults.set_traffic(RATE)
