"""How fast: `make bench`, on PostgreSQL and RabbitMQ unless PAIR says otherwise. All must arrive in the end."""

from __future__ import annotations

import os
import statistics
import time

import pytest
from django.db import transaction

from outbox_core import Outgoing, publish, publish_many, subscribe
from outbox_core.inbox import registry
from outbox_core.models import Dispatch, Message, Pending
from tests.processes import wait_until

MESSAGES = int(os.environ.get("BENCH_MESSAGES", "20000"))
BODY = {"text": "x" * 480}  # about 500 bytes
SINGLES = 200


@pytest.fixture(autouse=True)
def queue(spawn):
    """A queue for everything, so that nothing comes back as unroutable."""
    subscribe("bench.#", consumer="bench")(lambda message: None)
    from django.core.management import call_command

    call_command("outbox_topology", "--apply")
    yield
    registry.forget("bench")


def report(what: str, count: int, seconds: float) -> None:
    print(f"\n{what}: {count / seconds:,.0f}/s ({count:,} in {seconds:.1f} s)")


@pytest.mark.parametrize("keys", [0, 1000, 1], ids=["no key", "1000 keys", "one key"])
def test_throughput_of_one_dispatcher(spawn, keys):
    count = MESSAGES if keys != 1 else MESSAGES // 10
    items = [Outgoing("bench.made", BODY, key=f"key-{n % keys}" if keys else "") for n in range(count)]
    start = time.monotonic()
    with transaction.atomic():
        publish_many(items)
    report("publish_many", count, time.monotonic() - start)
    start = time.monotonic()
    spawn("outbox_dispatch")
    wait_until(Dispatch.objects.exists, 20)
    started = time.monotonic()
    before = Pending.objects.count()
    wait_until(lambda: not Pending.objects.exists(), 300, 0.2)
    report(
        f"dispatch, {keys or 'no'} key(s), after a start of {started - start:.1f} s",
        before,
        time.monotonic() - started,
    )
    assert Dispatch.objects.count() == count


def test_latency_from_commit_to_confirm(spawn):
    spawn("outbox_dispatch")
    with transaction.atomic():
        publish("bench.first", BODY)
    wait_until(Dispatch.objects.exists, 20)
    for _ in range(SINGLES):
        with transaction.atomic():
            publish("bench.made", BODY)
        time.sleep(0.02)  # a steady trickle is what is measured
    wait_until(lambda: Dispatch.objects.count() == SINGLES + 1, 20)
    sent = dict(Dispatch.objects.values_list("message", "at"))
    ages = sorted((sent[m.pk] - m.created_at).total_seconds() * 1000 for m in Message.objects.all()[1:])
    print(
        f"\ncommit to confirm: median {statistics.median(ages):.0f} ms, p95 {ages[int(len(ages) * 0.95)]:.0f} ms"
    )
    assert len(ages) == SINGLES
