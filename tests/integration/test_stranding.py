"""A destination whose messages all fail alike is tried by one of them, and the rest flows once it takes them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest

from outbox_core.models import Dispatch, FailedAttempt, Parked, Pending, Worker
from outbox_core.operations.verbs import Actor, act
from outbox_core.outbox.queue import promote
from outbox_core.outbox.stranding import stranded_roads
from outbox_core.sql import Dialect, exclusive
from tests.integration.relaying import (
    arrivals,
    bind,
    first_copies,
    known_ids,
    positions_by_key,
    publish_numbered,
    relay,
    running,
    settled,
)  # fmt: skip
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _quick(outbox_settings: Callable[..., None]) -> None:
    outbox_settings(BATCH_SIZE=50, BACKOFF_BASE=0.2, BACKOFF_CAP=1, POLL_INTERVAL=0.1)


def all_but_a_few_are_stranded() -> bool:
    return (
        Pending.objects.filter(stranded=True).count() >= 150
        and not Pending.objects.filter(stranded=False, failures=0).exists()
    )


@pytest.mark.parametrize("keys", [0, 100], ids=["no keys", "100 keys"])
def test_most_of_many_unroutable_ones_wait_untouched_and_flow_once_a_queue_is_bound(
    exchange: str, keys: int
) -> None:
    bind(exchange, "something.else")
    publish_numbered(400, keys)
    with running():
        wait_until(all_but_a_few_are_stranded if not keys else _stranded, 20)
        waiting = Pending.objects.filter(stranded=True)
        assert set(waiting.values_list("attempts", "failures", "available_at")) == {(0, 0, None)}
        assert Pending.objects.filter(attempts__gt=0).count() <= 120
        assert not Parked.objects.exists()
        queue = bind(exchange)
        wait_until(settled, 30)
    found = arrivals(queue, 400)
    assert {d.message_id for d in found} == known_ids()
    if keys:
        for positions in positions_by_key(first_copies(found)).values():
            assert positions == sorted(positions)


def _stranded() -> bool:
    return Pending.objects.filter(stranded=True).count() >= 20


def test_a_probe_goes_again_and_again_and_says_so(exchange: str) -> None:
    bind(exchange, "something.else")
    publish_numbered(400)
    with running():
        wait_until(all_but_a_few_are_stranded, 20)
        before = Pending.objects.filter(attempts__gt=0).count()
        wait_until(lambda: Pending.objects.filter(attempts__gt=0).count() >= before + 3, 20)
        wait_until(lambda: Worker.objects.filter(problems__icontains="one is tried at a time").exists(), 10)
    assert stranded_roads(Dialect("default")) == [(exchange, "shop.sold")]


def test_few_that_fail_alike_each_go_their_own_way_to_dead(exchange: str, outbox_settings: Any) -> None:
    outbox_settings(MAX_ATTEMPTS=3, BACKOFF_BASE=0.05)
    bind(exchange, "something.else")
    publish_numbered(15)
    with running():
        wait_until(lambda: Parked.objects.filter(state="dead").count() == 15, 20)
    assert not Pending.objects.exists()


def test_other_types_and_destinations_flow_beside_it(exchange: str) -> None:
    queue = bind(exchange, "other.sold")
    publish_numbered(400)
    with running():
        wait_until(all_but_a_few_are_stranded, 20)
        publish_numbered(100, type="other.sold")
        wait_until(lambda: Dispatch.objects.count() == 100, 20)
    assert len(arrivals(queue, 100)) == 100


def test_whoever_comes_next_takes_back_what_is_stranded(exchange: str) -> None:
    bind(exchange, "something.else")
    publish_numbered(400)
    with running("first"):
        wait_until(all_but_a_few_are_stranded, 20)
    queue = bind(exchange)
    with running("second"):
        wait_until(settled, 20)
    assert {d.message_id for d in arrivals(queue, 400)} == known_ids()


def test_a_person_may_try_one_at_once_discard_another_and_no_promotion_moves_the_rest(exchange: str) -> None:
    queue = bind(exchange)
    publish_numbered(3, keys=3)
    Pending.objects.update(available_at=None, stranded=True)
    tried, discarded, left = Pending.objects.order_by("pk")
    with exclusive("default"):
        promote("default", [(row.partition, row.key) for row in (tried, discarded, left)])
    assert Pending.objects.filter(stranded=True, available_at=None).count() == 3
    operator = Actor("1", "operator", "cli")
    assert act("retry", tried.message.message_id, actor=operator, reason="try it").outcome == "done"
    assert act("discard", discarded.message.message_id, actor=operator, reason="old").outcome == "done"
    tried.refresh_from_db()
    assert (tried.stranded, tried.available_at is None) == (False, False)
    relay()  # its heartbeat finds what no circuit holds
    assert len(arrivals(queue, 2)) == 2
    assert Parked.objects.get().state == "discarded"


def test_a_full_queue_is_probed_and_harms_no_message(exchange: str, amqp: str, pair: str) -> None:
    if pair != "real":
        pytest.skip("the embedded broker's queues are never full")
    name = f"{exchange}-arrivals"
    with pika.BlockingConnection(pika.URLParameters(amqp)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(
            name, durable=True, arguments={"x-max-length": 20, "x-overflow": "reject-publish"}
        )
        channel.queue_bind(name, exchange, "#")
        publish_numbered(500)
        taken: list[bytes] = []
        with running():
            wait_until(lambda: Pending.objects.filter(stranded=True).count() >= 300, 20)
            assert not Pending.objects.filter(failures__gt=0).exists()
            assert Pending.objects.filter(attempts__gt=0).count() <= 250

            def drained() -> bool:
                while (got := channel.basic_get(name, auto_ack=True))[0]:
                    taken.append(got[2])
                return settled()

            wait_until(drained, 60)
            drained()
    assert len(set(taken)) == 500
    assert not Parked.objects.exists()
    assert not FailedAttempt.objects.exclude(kind="transient").exists()
