"""A broker that answers late: what is in flight stays with its dispatcher, whoever else comes or clicks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbox_core.errors import StateChanged
from outbox_core.models import Dispatch, FailedAttempt, Lease, Message, Operation, Parked, Worker
from outbox_core.operations.verbs import Actor, act
from outbox_core.outbox.leases import decode
from tests.integration.relaying import arrivals, bind, copies, known_ids, publish_numbered, settled
from tests.private_servers import RabbitMQ
from tests.processes import Process, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.pair("real")]

PERSON = Actor("7", "ana", "dashboard", "10.0.0.7")


def in_flight() -> int:
    return sum(len(decode(value)) for value in Lease.objects.values_list("in_flight", flat=True))


def test_no_one_sends_again_what_a_slow_broker_has_not_confirmed(
    private_rabbitmq: RabbitMQ, exchange: str, spawn: Callable[..., Process], outbox_settings: Any, scale: Any
) -> None:
    """Beyond several leases, beside a second dispatcher, one that starts meanwhile, and a person who retries all."""
    outbox_settings(LEASE=2, HEARTBEAT=0.4)
    queue = bind(exchange)
    for name in ("first", "second"):
        spawn("outbox_dispatch", "--name", name)
    wait_until(lambda: Worker.objects.filter(broker="connected").count() == 2, 20)
    private_rabbitmq.freeze()
    publish_numbered(50, keys=50)
    wait_until(lambda: in_flight() == 50, 10)
    refused = 0
    for id_ in Message.objects.values_list("message_id", flat=True):
        with pytest.raises(StateChanged, match=r"it is being sent by (first|second)"):
            act("retry", id_, actor=PERSON, reason="all of them")
        refused += 1
    third = spawn("outbox_dispatch", "--name", "third")
    wait_until(lambda: Lease.objects.filter(name="third").exists(), 10)
    patience = wait_until(lambda: Lease.objects.filter(turn__gte=10 * scale(10)).count() >= 2, 60)
    assert patience
    assert third.running
    assert in_flight() == 50, "leases were renewed all the while"
    private_rabbitmq.thaw()
    wait_until(settled, 30)
    found = arrivals(queue, 50)
    assert set(copies(found)) == known_ids()
    assert set(copies(found).values()) == {1}
    assert {d.headers["outbox-attempt"] for d in found} == {1}
    assert Dispatch.objects.count() == 50
    assert not FailedAttempt.objects.exists()
    assert not Parked.objects.exists()
    assert not Operation.objects.exists()
    assert refused == 50
