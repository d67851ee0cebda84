"""Direct mode: who sends what, what the dispatcher gets, and what a killed or lonely producer leaves behind."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from outbox_core import publish
from outbox_core.models import Dispatch, FailedAttempt, Parked, Pending
from outbox_core.outbox import direct
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.dispatcher import Dispatcher
from outbox_core.outbox.queue import claim_direct
from outbox_core.outbox.stranding import strand
from outbox_core.shutdown import Stop
from outbox_core.sql import Dialect, exclusive
from outbox_core.transports.base import Outcome
from tests.integration.relaying import arrivals, bind, publish_numbered, relay, settled
from tests.integration.situations import own
from tests.private_servers import RabbitMQ, free_port
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _direct(outbox_settings: Callable[..., None]) -> Iterator[None]:
    outbox_settings(MODE="direct")
    yield
    direct.close()


def test_the_producer_sends_without_a_dispatcher(exchange: str) -> None:
    queue = bind(exchange)
    publish_numbered(300)
    wait_until(settled, 10)
    found = arrivals(queue, 300)
    assert len(found) == 300
    assert {d.headers["outbox-attempt"] for d in found} == {1}
    assert Dispatch.objects.filter(cause="first", attempt=1).count() == 300


def test_nothing_goes_before_the_commit_or_after_a_rollback(exchange: str) -> None:
    queue = bind(exchange)
    with transaction.atomic():
        publish("shop.sold", {"n": 1})
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            publish("shop.sold", {"n": 2})
            raise ZeroDivisionError
        assert not Dispatch.objects.exists()
    wait_until(settled, 10)
    assert [d.body for d in arrivals(queue, 1)] == [b'{"n":1}']


def test_what_has_a_key_or_a_delay_is_left_to_the_dispatcher(exchange: str) -> None:
    bind(exchange)
    with transaction.atomic():
        keyed = publish("shop.sold", {}, key="k")
        delayed = publish("shop.sold", {}, delay=60)
        plain = publish("shop.sold", {})
    wait_until(lambda: not Pending.objects.filter(pk=plain.pk).exists(), 10)
    assert set(Pending.objects.values_list("pk", "direct")) == {(keyed.pk, False), (delayed.pk, False)}


def test_what_the_broker_refuses_becomes_the_dispatchers_with_its_failure_counted(
    exchange: str, outbox_settings: Any
) -> None:
    outbox_settings(MAX_ATTEMPTS=2, BACKOFF_BASE=0)
    bind(exchange, "shop.#")
    with transaction.atomic():
        publish("nobody.listens", {})
    wait_until(lambda: Pending.objects.filter(direct=False, failures=1, attempts=1).exists(), 10)
    relay()
    parked = Parked.objects.get()
    assert (parked.state, parked.attempts, parked.failures) == ("dead", 2, 2)
    assert FailedAttempt.objects.count() == 2


def test_a_broker_that_is_away_costs_nothing_but_the_dispatchers_turn(
    exchange: str, outbox_settings: Any, pair: str
) -> None:
    if pair != "real":
        pytest.skip("the embedded broker is always there")
    outbox_settings(AMQP_URL=f"amqp://guest:guest@127.0.0.1:{free_port()}/", DIRECT_GRACE=60)
    publish_numbered(3)
    wait_until(lambda: Pending.objects.filter(direct=False, attempts=0, failures=0).count() == 3, 20)
    assert not FailedAttempt.objects.exists()


def test_more_than_there_is_room_for_goes_to_the_dispatcher_at_once(exchange: str, monkeypatch: Any) -> None:
    queue = bind(exchange)
    monkeypatch.setattr(direct, "ROOM", 10)
    publish_numbered(200)
    wait_until(lambda: not Pending.objects.filter(direct=True).exists(), 10)
    assert Pending.objects.filter(attempts=0).count() + Dispatch.objects.count() == 200
    relay()
    assert len(arrivals(queue, 200)) == 200


def test_a_committed_transaction_that_took_too_long_is_the_dispatchers(
    exchange: str, outbox_settings: Any, monkeypatch: Any
) -> None:
    outbox_settings(DIRECT_GRACE=2)
    bind(exchange)
    sent: list[Any] = []
    real = direct.offer
    monkeypatch.setattr(direct, "offer", lambda using, messages, started: real(using, messages, started - 2))
    monkeypatch.setattr(direct, "write_lanes", lambda *lanes: sent.append(lanes) or ([], []))
    publish_numbered(1)
    wait_until(lambda: Pending.objects.filter(direct=False, attempts=0).exists(), 10)
    assert sent == []


def test_the_dispatcher_claims_only_what_its_producer_has_not_settled(exchange: str) -> None:
    from outbox_core.models import Message
    from outbox_core.outbox.direct import _row

    with exclusive("default"):
        messages = [publish("shop.sold", {"n": n}, delay=60) for n in range(2)]
    Pending.objects.update(scheduled=False, direct=True)
    Pending.objects.filter(pk=messages[0].pk).delete()  # settled by the producer since the read
    with exclusive("default") as db:
        claimed = claim_direct(db, [_row(m) for m in Message.objects.order_by("pk")])
    assert [(row.id, row.attempts) for row in claimed] == [(messages[1].pk, 1)]
    assert Dialect("default").execute("SELECT 1") == [(1,)]


PRODUCE = """
import os, time
from django.db import transaction
from outbox_core import publish
with transaction.atomic():
    for n in range(20):
        publish("shop.sold", {"n": n})
"""


@pytest.mark.parametrize("point", ["published", "confirmed", "settled"])
def test_a_producer_that_is_killed_leaves_nothing_behind(
    exchange: str, spawn: Any, outbox_settings: Any, point: str
) -> None:
    outbox_settings(DIRECT_GRACE=2)
    queue = bind(exchange)
    armed = {"OUTBOX_ALLOW_CRASH": "1", "OUTBOX_CRASH_AT": point}
    wait = "\nimport time; time.sleep(20)"
    producer = spawn("shell", "-c", PRODUCE + wait, env=armed)
    wait_until(lambda: not producer.running, 20)
    assert producer.returncode == -signal.SIGKILL
    Dispatcher("default", "successor").run(Stop(), once=True)
    wait_until(lambda: relay() == 0 and settled(), 20)
    found = arrivals(queue, 20)
    bodies = {d.body for d in found}
    assert len(bodies) == 20
    assert not Parked.objects.exists()
    assert not FailedAttempt.objects.exclude(error_class="MaybeSent").exists()
    for surplus in (d for d in found if found.index(d) != [x.body for x in found].index(d.body)):
        assert surplus.headers["outbox-attempt"] == 2


def test_a_short_process_waits_for_its_confirms(exchange: str, spawn: Any) -> None:
    queue = bind(exchange)
    producer = spawn("shell", "-c", PRODUCE)
    wait_until(lambda: not producer.running, 20)
    assert producer.returncode == 0, producer.output
    assert not Pending.objects.exists()
    assert len(arrivals(queue, 20)) == 20


def test_a_forked_child_sends_by_itself(exchange: str, spawn: Any, pair: str) -> None:
    if pair != "real":
        pytest.skip("SQLite allows no open connection across a fork")
    queue = bind(exchange)
    fork = (
        PRODUCE
        + """
from django.db import connections
connections.close_all()
child = os.fork()
with transaction.atomic():
    publish("shop.sold", {"n": "child" if child == 0 else "parent"})
from outbox_core.models import Pending
end = time.monotonic() + 15  # a busy broker may take longer to connect to than a process waits at its end
while Pending.objects.exists() and time.monotonic() < end:
    time.sleep(0.05)
if child:
    os.waitpid(child, 0)
"""
    )
    producer = spawn("shell", "-c", fork)
    wait_until(lambda: not producer.running, 30)
    assert producer.returncode == 0, producer.output
    assert sorted(d.body for d in arrivals(queue, 22))[:2] == [b'{"n":"child"}', b'{"n":"parent"}']
    assert not Pending.objects.exists()


def test_a_broker_that_goes_away_and_comes_back(private_rabbitmq: RabbitMQ, exchange: str) -> None:
    queue = bind(exchange)
    publish_numbered(10)
    wait_until(settled, 10)
    private_rabbitmq.stop()
    publish_numbered(10)
    wait_until(lambda: Pending.objects.filter(direct=False, failures=0).count() == 10, 20)
    private_rabbitmq.start()
    wait_until(lambda: relay() >= 0 and settled(), 30)
    assert len({d.message_id for d in arrivals(queue, 20)}) == 20


@pytest.mark.parametrize(("outcome", "attempts"), [(Outcome.UNKNOWN, 1), (Outcome.UNSENT, 0)])
def test_a_producer_that_answers_late_gives_back_what_was_stranded_meanwhile(
    outbox_settings: Any, outcome: Outcome, attempts: int
) -> None:
    outbox_settings(MODE="worker")
    with transaction.atomic():
        message = publish("shop.sold", 1)
    Pending.objects.update(direct=True)
    with exclusive("default") as db:
        strand(db, [message.pk])  # its grace was over, and its destination fails
    answer = Answer(direct._row(message), outcome, message.created_at)
    assert direct.settle("default", "producer", [answer], random.Random(1)) == []
    pending = Pending.objects.get()
    assert (pending.stranded, pending.direct, pending.attempts) == (False, False, attempts)
    assert pending.available_at is not None


def test_a_late_confirm_counts_the_send_that_a_dispatcher_has_open(outbox_settings: Any) -> None:
    outbox_settings(MODE="worker")
    with transaction.atomic():
        message = publish("shop.sold", 1)
    Pending.objects.update(attempts=1)  # claimed when its grace was over
    own("heir", [message])
    answer = Answer(direct._row(message), Outcome.CONFIRMED, message.created_at)
    assert direct.settle("default", "producer", [answer], random.Random(1)) == []
    assert not Pending.objects.exists()
    assert Dispatch.objects.get().attempt == 1
    assert list(FailedAttempt.objects.values_list("attempt", "worker", "kind")) == [(2, "heir", "unknown")]
