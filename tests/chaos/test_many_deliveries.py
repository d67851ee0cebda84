"""Many deliveries, some of them copies, and consumers that are killed: the sum of the effects is exact, and the ledger
knows every copy and why it came. With one transaction for each, and with one for a group."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pika
import pytest

from dashboard.demo.models import Letter
from outbox_core.models import Duplicate, Handling, LoopbackDelivery, Receipt
from outbox_core.transports import transport
from outbox_core.transports.base import Publisher, Queue, Send
from tests.chaos.mischief import free_loopback_deliveries
from tests.integration.carrying import each_alone, message, send_all, until_usable
from tests.processes import Process, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.parametrize("group", [1, 50])]

CONSUMER, TYPE = "bulk", "bulk.said"
KINDS: dict[str, dict[str, Any]] = {
    "producer": {"outbox-attempt": 1},
    "resend": {"outbox-attempt": 2},
    "operator": {"outbox-attempt": 1, "outbox-operation": "7"},
}


@pytest.fixture
def publisher(exchange: str) -> Iterator[Publisher]:
    queue = Queue(CONSUMER, (TYPE,))
    assert transport().apply_topology([queue]) == []
    made = transport().publisher()
    made.open()
    until_usable(made)
    yield made
    made.close()


@dataclass
class Crew:
    """Consumer processes of the bulk consumer."""

    spawn: Callable[..., Process]
    group: int

    def start(self, *arguments: str, crash: str = "") -> Process:
        env = {"TEST_APPS": "tests.bulk", "BULK_GROUP": str(self.group)}
        if crash:
            env |= {"OUTBOX_CRASH_AT": crash, "OUTBOX_ALLOW_CRASH": "1"}
        return self.spawn("outbox_consume", "--consumer", CONSUMER, *arguments, env=env)

    def finish(self) -> None:
        free_loopback_deliveries()
        process = self.start("--once")
        assert process.wait(120) == 0, process.output


@pytest.fixture
def crew(spawn: Callable[..., Process], group: int) -> Crew:
    return Crew(spawn, group)


@pytest.mark.parametrize("point", ["receipt", "handled", "committed", "acked"])
def test_a_crash_loses_nothing_and_repeats_no_effect(
    crew: Crew, publisher: Publisher, exchange: str, point: str
) -> None:
    sends = [message(exchange, TYPE) for _ in range(120)]
    send_all(publisher, each_alone(sends))
    assert crew.start(crash=point).wait(60) == -9
    done = Letter.objects.count()
    assert done == Receipt.objects.count()
    if point in ("receipt", "handled"):
        assert done == 0
    crew.finish()
    assert Counter(Letter.objects.values_list("to", flat=True)) == {send.message_id: 1 for send in sends}
    assert Receipt.objects.count() == len(sends)
    assert not Handling.objects.exists()
    copies = Duplicate.objects.count()
    assert copies >= done if point == "committed" else copies <= done
    assert set(Duplicate.objects.values_list("cause", flat=True)) <= {"redelivered"}


def test_the_sum_is_exact_and_every_copy_is_in_the_ledger(
    crew: Crew, publisher: Publisher, exchange: str, scale: Callable[[int], int], amqp: str
) -> None:
    rng = random.Random(20)
    count = scale(20_000)
    kinds: dict[str, list[str]] = {}
    sends: list[Send] = []
    for n in range(count):
        kinds[f"many-{n}"] = chosen = rng.choices(list(KINDS), [2, 1, 1], k=rng.randint(1, 3))
        sends += [
            message(exchange, TYPE, tag=f"{n}-{i}", message_id=f"many-{n}", headers=KINDS[kind])
            for i, kind in enumerate(chosen)
        ]
    rng.shuffle(sends)
    members = [crew.start(), crew.start()]
    for at in range(0, len(sends), 1000):
        send_all(publisher, each_alone(sends[at : at + 1000]))
    kills = handled = 0
    began = time.monotonic()
    while (Receipt.objects.count() < count and time.monotonic() - began < 600) or kills < 2:
        time.sleep(rng.uniform(1, 3))
        # On a busy machine processes that are killed while they begin would never come to handle anything.
        handled = wait_until(partial(receipts_beyond, min(handled, count - 1)), timeout=60)
        members[kills % 2].kill()
        free_loopback_deliveries()
        members[kills % 2] = crew.start()
        kills += 1
    for member in members:
        member.send(15)
        assert member.wait(20) in (0, -15), member.output  # -15: it had only begun
    crew.finish()
    crew.finish()  # what a killed process held of the embedded broker

    assert Counter(Letter.objects.values_list("to", flat=True)) == dict.fromkeys(kinds, 1)
    assert not Handling.objects.exists()
    assert not LoopbackDelivery.objects.exists()
    if amqp:
        with pika.BlockingConnection(
            pika.URLParameters(amqp)
        ) as broker:  # no one holds an unacked one any more
            assert broker.channel().queue_declare(CONSUMER, passive=True).method.message_count == 0
    check_ledger(kinds)
    print(f"{len(sends)} deliveries of {count} messages, {kills} kills, {Duplicate.objects.count()} copies")


def receipts_beyond(least: int) -> int:
    """How many there are, if that is more than `least`; else 0."""
    found = Receipt.objects.count()
    return found if found > least else 0


def check_ledger(kinds: dict[str, list[str]]) -> None:
    """Each surplus delivery is there, with the first cause that fits; beyond them only what came again."""
    first = dict(Receipt.objects.values_list("message_id", "attempt"))
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for id_, cause, attempt in Duplicate.objects.values_list("message_id", "cause", "attempt"):
        found[id_].append((cause, attempt))
    for id_, sent in kinds.items():
        rows = found[id_]
        assert len(rows) >= len(sent) - 1, (id_, sent, rows)
        for cause, attempt in rows:
            resend = attempt > 1 or first[id_] > 1
            fits = {"resend"} if resend else {"redelivered", "race", "producer"}
            assert cause in fits | ({"operator"} if "operator" in sent else set()), (id_, sent, rows)
        operators = sum(cause == "operator" for cause, _ in rows)
        assert operators >= sent.count("operator") - 1, (id_, sent, rows)
