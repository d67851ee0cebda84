"""Verbs together with a real dispatcher and a real broker: what is sent, and what is not."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from outbox_core import publish
from outbox_core.errors import StateChanged
from outbox_core.models import Dispatch, Message, Operation, Parked, Pending
from outbox_core.operations import audit
from outbox_core.operations.inspect import standing
from outbox_core.operations.reconcile import reconcile
from outbox_core.operations.verbs import act
from tests.integration.relaying import arrivals, bind, first_copies, positions_by_key, publish_numbered, relay
from tests.integration.situations import ANA, dead, pending

pytestmark = pytest.mark.django_db(transaction=True)


def do(verb: str, message: Message) -> int:
    operation = act(verb, message.message_id, actor=ANA, reason="r").operation
    assert operation is not None
    return operation.pk


def test_a_redispatch_is_the_same_message_at_its_first_position_and_says_who_sent_it(exchange: str) -> None:
    queue = bind(exchange)
    message = pending(key="k")
    assert relay() == 1
    operation = do("redispatch", message)
    assert relay() == 1
    first, second = arrivals(queue, 2)
    assert first.message_id == second.message_id == str(message.message_id)
    assert [d.headers["outbox-attempt"] for d in (first, second)] == [1, 2]
    assert [d.headers["outbox-position"] for d in (first, second)] == [message.pk, message.pk]
    assert second.headers["outbox-operation"] == str(operation)
    assert not {"outbox-operation", "outbox-late"} & {*first.headers} and "outbox-late" not in second.headers
    assert [d.cause for d in Dispatch.objects.order_by("id")] == ["first", "operator"]
    here = standing(message)
    assert here.state == "dispatched" and here.version.endswith(f".{operation}")


def test_a_discarded_one_that_is_redispatched_later_says_that_it_is_late(exchange: str) -> None:
    queue = bind(exchange)
    message, follower = pending(key="k"), pending(key="k")
    do("discard", message)
    assert relay() == 1
    do("redispatch", message)
    assert relay() == 1
    first, second = arrivals(queue, 2)
    assert (first.message_id, second.message_id) == (str(follower.message_id), str(message.message_id))
    assert second.headers["outbox-late"] == 1 and "outbox-late" not in first.headers


def test_a_retried_dead_one_goes_before_those_that_it_held_back(exchange: str) -> None:
    queue = bind(exchange)
    message, follower = dead(key="k"), pending(key="k")
    assert relay() == 0 and Pending.objects.get(pk=follower.pk).available_at is None
    operation = do("retry", message)
    assert relay() == 2
    first, second = arrivals(queue, 2)
    assert (first.message_id, second.message_id) == (str(message.message_id), str(follower.message_id))
    assert first.headers["outbox-operation"] == str(operation) and "outbox-late" not in first.headers


@pytest.mark.parametrize("verb", ["mark", "discard"])
def test_giving_up_a_dead_one_lets_its_key_go_on(exchange: str, verb: str) -> None:
    queue = bind(exchange)
    message, follower = dead(key="k"), pending(key="k")
    assert relay() == 0
    do(verb, message)
    assert relay() == 1
    (arrived,) = arrivals(queue, 1)
    assert arrived.message_id == str(follower.message_id)


def test_nothing_is_sent_after_an_accepted_discard_and_all_else_arrives_in_order(
    exchange: str, spawn: Callable[..., Any], scale: Callable[[int], int], wait_until: Callable[..., Any]
) -> None:
    queue = bind(exchange)
    count = scale(6000)
    spawn("outbox_dispatch", "--name", "a"), spawn("outbox_dispatch", "--name", "b")
    accepted: list[int] = []
    refusals: list[StateChanged] = []
    errors: list[Exception] = []
    ended = threading.Event()

    def discard_at_random(seed: int) -> None:
        chance = random.Random(seed)
        while not ended.is_set():
            pks = list(Pending.objects.order_by("?").values_list("pk", flat=True)[:3])
            for pk in pks:
                try:
                    act(chance.choice(("discard", "mark")), pk, actor=ANA, reason="a race")
                    accepted.append(pk)
                except StateChanged as refusal:
                    refusals.append(refusal)
                except Exception as error:
                    errors.append(error)
            ended.wait(0.02)
        connection.close()

    threads = [threading.Thread(target=discard_at_random, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            publish_numbered(count // 4, keys=15)
        wait_until(lambda: not Pending.objects.exists(), 60, every=0.2)
    finally:
        ended.set()
        for thread in threads:
            thread.join(30)
    assert not errors, errors[:3]
    assert accepted, "no discard was accepted, so nothing was tested"
    assert Parked.objects.count() == len(accepted) == Operation.objects.count()
    assert not Dispatch.objects.filter(message__in=accepted).exists()
    assert Dispatch.objects.count() == Message.objects.count() - len(accepted)
    found = arrivals(queue, Message.objects.count() - len(accepted))
    gone = {str(i) for i in Message.objects.filter(pk__in=accepted).values_list("message_id", flat=True)}
    assert not gone & {d.message_id for d in found}
    for key, positions in positions_by_key(first_copies(found)).items():
        assert positions == sorted(positions), key
    assert audit.verify() == [] and reconcile() == []


def test_what_was_maybe_sent_keeps_its_place_on_the_wire_through_redispatch_death_and_retry(
    exchange: str, outbox_settings: Any
) -> None:
    """With a new place, a redispatched old price would beat a newer one at a consumer that discards what is stale."""
    outbox_settings(MAX_ATTEMPTS=1)
    with transaction.atomic():
        message = publish("later.bound", 1, key="k")
    relay()  # dies: no queue is bound yet
    do("discard", message)
    do("redispatch", message)
    relay()  # dies again, at its new place
    parked = Parked.objects.get(message=message.id)
    assert parked.position > message.id
    do("retry", message)
    queue = bind(exchange, "later.bound")
    relay()
    (delivery,) = arrivals(queue, 1)
    assert delivery.headers["outbox-position"] == message.id
    assert delivery.headers["outbox-late"] == 1
