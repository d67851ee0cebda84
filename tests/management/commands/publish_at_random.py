"""A business process that publishes without end: keyed, delayed, unroutable and rolled back messages, by a seed."""

from __future__ import annotations

import random
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from outbox_core import publish
from outbox_core.conf import settings
from outbox_core.shutdown import stop_on_signals

KEYS = (
    12  # of each process: two that publish never share one, so the order of a key is the order of its commits
)


class RolledBack(Exception):
    """The business changed its mind after it had published."""


class Command(BaseCommand):
    """Commits 1 to 5 messages at a time until SIGTERM. Of those that say `ghost` in their payload none is committed."""

    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seed", type=int, required=True)
        parser.add_argument("--name", required=True)
        parser.add_argument("--first", type=int, required=True, help="the first order's number")
        parser.add_argument(
            "--pause", type=float, default=0.02, help="seconds between transactions, on average"
        )

    def handle(self, *, seed: int, name: str, first: int, pause: float, **options: Any) -> None:
        rng, order = random.Random(seed), first
        with stop_on_signals() as stop:
            while not stop.is_set():
                ghost = rng.random() < 0.1
                try:
                    with transaction.atomic():
                        for _ in range(rng.choice([1, 1, 2, 5])):
                            publish_one(rng, name, order, ghost)
                            order += 1
                        if ghost:
                            raise RolledBack
                except RolledBack:
                    pass
                time.sleep(rng.expovariate(1 / pause))


def publish_one(rng: random.Random, name: str, order: int, ghost: bool) -> None:
    """Mostly an order, half of them with a key; now and then what fails for a while, for ever, or goes later."""
    key = f"{name}-{rng.randrange(KEYS)}" if rng.random() < 0.6 else ""
    payload = {"order_id": order, "basket_id": 0, "total": "1.00", "lines": [], "ghost": ghost}
    kind = rng.random()
    if kind < 0.08:
        publish("flaky.heard", payload, key=key)
    elif kind < 0.11:
        publish("nobody.listens", payload, key=key)
    elif kind < 0.13:
        publish("orders.started", payload, key=key, destination=f"{settings.EXCHANGE}-missing")
    elif kind < 0.2:
        publish("orders.started", payload, key=key, delay=rng.uniform(0.2, 3))
    else:
        publish("orders.started", payload, key=key)
