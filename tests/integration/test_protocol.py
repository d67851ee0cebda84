"""Random runs of the relay's protocol: every rule is checked after every step (see protocol/rules.py).

Real turns, leases, verbs and pruning on the real database; a broker moved by hand, so that confirms come late, get
lost, or come after a takeover exactly where the seed says so. `PROTOCOL_SEED=n` begins with that one.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.integration.protocol.world import World

pytestmark = pytest.mark.django_db(transaction=True)

STEPS = 300
RUNS = max(2, round(30 * float(os.environ.get("SCALE", "0.1"))))


@pytest.mark.parametrize("run", range(RUNS))
def test_the_rules_hold_after_every_step_of_a_random_run(
    run: int, exchange: str, outbox_settings: Any, monkeypatch: Any
) -> None:
    outbox_settings(
        BATCH_SIZE=8, MAX_ATTEMPTS=3, BACKOFF_BASE=1, BACKOFF_CAP=5,
        RETENTION={"dispatched": 0, "receipts": 7, "failures": 90},
    )  # fmt: skip
    seed = int(os.environ.get("PROTOCOL_SEED") or os.environ["TEST_SEED"]) + run
    print(f"PROTOCOL_SEED={seed}")
    world = World(seed, relays=2 + seed % 2, monkeypatch=monkeypatch)
    for _ in range(STEPS):
        world.step()
    world.drain()
    print(dict(world.counts))
