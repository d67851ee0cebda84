"""Many people act at random while two dispatchers send: no deadlock, nothing stuck, and nothing that is being sent is
touched."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outbox_core.models import Message
from outbox_core.operations.reconcile import reconcile
from outbox_core.transports import transport
from tests.chaos.evidence import Evidence, come_to_rest, deadlocks
from tests.chaos.feeder import Feeder
from tests.chaos.meddling import Meddler
from tests.integration.relaying import bind
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)

TYPES = ("shop.sold",) * 13 + ("flaky.heard", "nobody.listens")


def test_verbs_at_random_beside_two_dispatchers(
    exchange: str, spawn: Callable[..., Process], wait_until: Any, scale: Any, outbox_settings: Any, pair: str
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1_000_000))
    print(f"CHAOS_SEED={seed}")
    outbox_settings(
        HEARTBEAT=0.5, POLL_INTERVAL=0.3, BATCH_SIZE=50, MAX_ATTEMPTS=3, BACKOFF_BASE=0.2, BACKOFF_CAP=1
    )
    witness = bind(exchange, "shop.#", "flaky.#")
    for name in "ab":
        spawn("outbox_dispatch", "--name", name)
    threads, pause = (4, 0.005) if pair == "real" else (2, 0.02)
    feeder = Feeder(pause=0.2, types=TYPES)
    feeder.start()
    with Meddler(witness, random.Random(seed), threads, pause) as meddler:
        time.sleep(max(6, scale(600) ** 2 / 600))  # 6 s in `make test`, 10 minutes at full size
        wait_until(lambda: meddler.counts["in flight"], 60)  # nothing is in flight for long here
    count = feeder.stop()
    assert (
        transport().apply_topology([replace(witness, patterns=("#",))]) == []
    )  # or the backlog ends dead, one by one
    come_to_rest(wait_until)

    evidence = Evidence.collect(witness, meddler)
    print(meddler.counts, evidence.counts)
    assert meddler.errors == []
    assert deadlocks() == 0
    assert Message.objects.count() == count
    assert list(reconcile()) == []
    evidence.check()
