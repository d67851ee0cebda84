"""Everything at once, by a seed: publishers, dispatchers and consumers are killed, frozen and replaced, a routing key
comes and goes, and people act. Afterwards every promise is checked against what stands in the queue.

`CHAOS_SEED=n` repeats the choices of a run (not its timing).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from dashboard.demo.models import Payment
from outbox_core.inbox.registry import subscriptions
from outbox_core.models import Handling, Message, Receipt
from outbox_core.operations.reconcile import reconcile
from outbox_core.transports import transport
from tests.chaos.crew import Crew
from tests.chaos.evidence import Evidence, come_to_rest, deadlocks
from tests.chaos.meddling import Meddler
from tests.chaos.mischief import free_loopback_deliveries
from tests.integration.relaying import bind
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = 2.0
HEARD = ("orders.#", "payments.#", "flaky.#")


def test_nothing_is_lost_stuck_or_out_of_order_whatever_happens(
    exchange: str, spawn: Callable[..., Process], wait_until: Any, scale: Any, outbox_settings: Any, pair: str
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1_000_000))
    print(f"CHAOS_SEED={seed}")
    outbox_settings(
        LEASE=LEASE, HEARTBEAT=0.4, POLL_INTERVAL=0.3, BATCH_SIZE=50, WINDOW=50, MAX_ATTEMPTS=3, BACKOFF_BASE=0.2,
        BACKOFF_CAP=1, DIRECT_GRACE=2,
    )  # fmt: skip
    payments = subscriptions()["payments"].queue
    assert transport().apply_topology([payments]) == []
    witness = bind(exchange, *HEARD)  # a queue that nobody empties: what stands in it has arrived
    crew = Crew(spawn, random.Random(seed), LEASE, embedded=pair == "embedded")
    with Meddler(witness, random.Random(seed + 1), threads=1 if pair == "embedded" else 2) as meddler:
        end = time.monotonic() + max(8, scale(120))
        while time.monotonic() < end:
            crew.misbehave()
        crew.replace_all()
    free_loopback_deliveries()
    come_to_rest(wait_until)
    wait_until(all_handled, 60)

    evidence = Evidence.collect(witness, meddler)
    print(crew.counts, meddler.counts, evidence.counts)
    assert meddler.errors == []
    assert crew.said("behind nothing", "Traceback", "database is locked") == []
    assert list(reconcile()) == []
    assert deadlocks() == 0
    evidence.check()
    check_effects()


def all_handled() -> bool:
    """Every order that was sent has its receipt, or is dead at its consumer."""
    sent = Message.objects.filter(type="orders.started", dispatches__isnull=False).values("message_id")
    done = set(Receipt.objects.filter(consumer="payments").values_list("message_id", flat=True))
    done |= set(
        Handling.objects.filter(consumer="payments", state="dead").values_list("message_id", flat=True)
    )
    return {str(id_) for (id_,) in sent.values_list("message_id")} <= done


def check_effects() -> None:
    """One payment per order that was handled, and one message of it."""
    paid = sorted(Payment.objects.values_list("order_id", flat=True))
    receipts = Receipt.objects.filter(consumer="payments", outcome="processed").count()
    assert len(paid) == len(set(paid)) == receipts
    assert Message.objects.filter(type="payments.settled").count() == receipts
