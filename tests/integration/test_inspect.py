"""Where a message stands: states, what it waits for, its timeline and its consumers."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from outbox_core.clock import database_now
from outbox_core.inbox.registry import forget, subscribe
from outbox_core.models import Duplicate, FailedAttempt, Handling, Partition, Pending, Receipt
from outbox_core.operations import audit, inspect
from outbox_core.operations.facts import versions
from outbox_core.operations.inspect import (
    EARLIER_CAP,
    causes,
    consumers,
    effects,
    standing,
    standings,
    timeline,
)  # fmt: skip
from outbox_core.operations.verbs import act
from outbox_core.sql import Dialect
from tests.integration.situations import (
    ANA,
    aside,
    confirm,
    dead,
    dispatched,
    own,
    pending,
    received,
    retrying,
)  # fmt: skip

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_queue_decides_before_what_was_parked_or_sent() -> None:
    assert standing(pending()).state == "pending"
    assert standing(retrying()).state == "retrying"
    assert standing(dead()).state == "dead"
    message = dispatched()
    assert standing(message).state == "dispatched"
    act("redispatch", message.message_id, actor=ANA, reason="once more")
    here = standing(message)
    assert here.state == "pending" and here.last_dispatch is not None


def test_a_version_moves_with_state_send_and_act() -> None:
    message = retrying()
    assert standing(message).version == "retrying.0.0"
    act("retry", message.message_id, actor=ANA, reason="now")
    here = standing(message)
    assert here.last_operation is not None
    assert here.version == f"retrying.0.{here.last_operation.pk}"
    sent = confirm(message, message.pk, 3)
    assert standing(message).version == f"dispatched.{sent.pk}.{here.last_operation.pk}"


def test_revealing_a_payload_makes_no_page_stale() -> None:
    message = retrying()
    seen = standing(message).version
    with transaction.atomic():
        audit.record("default", actor=ANA, verb="reveal", reason="r", message_id=str(message.message_id))
    assert standing(message).version == seen == versions([message.pk], "default")[message.pk][1]
    assert act("retry", message.message_id, actor=ANA, reason="r", version=seen).outcome == "done"


def test_a_due_one_waits_for_the_next_turn_or_for_an_owner() -> None:
    message = pending()
    wait = standing(message).waits
    assert (wait.kind, wait.by) == ("no_owner", "")
    lease = own("dispatcher-a")
    assert standing(message).waits.kind == "due"
    lease.delete()
    Partition.objects.update(lease=None)
    gone = own("gone", in_flight=[message], seconds=-5)
    wait = standing(message).waits
    assert (wait.kind, wait.by, wait.since) == ("no_owner", "gone", gone.until)


def test_in_flight_names_the_dispatcher_and_since_when() -> None:
    message, other = pending(), pending()
    lease = own("dispatcher-b", in_flight=[message])
    wait = standing(message).waits
    assert (wait.kind, wait.by, wait.since) == ("in_flight", "dispatcher-b", lease.turned_at)
    assert standing(other).waits.kind == "due"


def test_back_off_scheduled_and_direct_say_until_when() -> None:
    own()
    backing_off, scheduled, direct = retrying(), pending(delay=3600), pending()
    until = database_now() + timedelta(seconds=60)
    Pending.objects.filter(pk=direct.pk).update(direct=True, available_at=until)
    for message, kind in ((backing_off, "backoff"), (scheduled, "scheduled"), (direct, "direct")):
        wait = standing(message).waits
        assert wait.kind == kind and wait.until == Pending.objects.get(pk=message.pk).available_at
    Pending.objects.filter(pk=direct.pk).update(available_at=database_now() - timedelta(seconds=1))
    assert standing(direct).waits.kind == "due"


def test_behind_names_the_first_and_how_many_are_earlier() -> None:
    first, _, third, other = retrying(key="k"), aside("k"), aside("k"), pending(key="other")
    own()
    wait = standing(third).waits
    assert (wait.kind, wait.by, wait.earlier) == ("behind", str(first.message_id), 2)
    assert standing(first).waits.kind == "backoff" and standing(other).waits.kind == "due"


def test_a_long_line_is_counted_up_to_a_cap() -> None:
    for _ in range(3):
        pending(key="k")
    row = Pending.objects.order_by("position").last()
    assert row is not None
    Pending.objects.bulk_create(
        Pending(
            message_id=10**9 + i,
            partition=row.partition,
            key="k",
            position=10**9 + i,
            type="t",
            destination="events",
            available_at=database_now(),
        )
        for i in range(EARLIER_CAP + 10)
    )
    last = pending(key="k")
    Pending.objects.filter(pk=last.pk).update(position=2 * 10**9)
    assert standing(last).waits.earlier == EARLIER_CAP + 1


def test_the_line_of_a_key_is_read_from_its_indexes() -> None:
    message = aside("k")
    db = Dialect("default")
    condition, among = db.among("p.message", [message.pk])
    with transaction.atomic():
        if db.postgresql:  # with a handful of rows it would rather read the table
            db.execute("SET LOCAL enable_seqscan = off")
        plan = db.execute(
            f"EXPLAIN {'' if db.postgresql else 'QUERY PLAN'} {inspect._LANES}{condition}", [among]
        )
    told = "\n".join(str(row) for row in plan)
    assert "outbox_lane" in told and "outbox_holds" in told, told


def test_held_names_the_dead_message() -> None:
    first = dead(key="k")
    message = aside("k")
    wait = standing(message).waits
    assert (wait.kind, wait.by) == ("held", str(first.message_id)) and wait.since is not None


def test_a_page_of_fifty_costs_as_many_queries_as_one() -> None:
    own()
    messages = [make(key=f"k{i % 5}") for i in range(7) for make in (pending, retrying, dead, dispatched)]
    messages += [aside(f"k{i % 5}") for i in range(22)]
    for message in messages[:3]:
        act("retry", message.message_id, actor=ANA, reason="now")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        found = standings(messages)
    assert len(found) == len(messages) == 50
    assert len(queries) <= 8, [q["sql"][:120] for q in queries]
    assert standings([]) == {}


def test_the_timeline_tells_everything_newest_first() -> None:
    message = retrying(failures=1)
    for kind, error, detail in (
        ("transient", "Unroutable", 'no queue is bound to "order.paid"'),
        ("unknown", "MaybeSent", "dispatcher-b stopped before its confirm"),
        ("transient", "ExchangeNotFound", 'no exchange "x"'),
    ):
        FailedAttempt.objects.create(
            message=message, worker="dispatcher-b", attempt=1, error_class=error, detail=detail, kind=kind
        )  # fmt: skip
    act("retry", message.message_id, actor=ANA, reason="bound now")
    confirm(message, message.pk, 2)
    now, id_ = database_now(), str(message.message_id)
    Receipt.objects.create(
        consumer="basket", message_id=id_, received_at=now, outcome="processed", digest="d"
    )
    Receipt.objects.create(consumer="stock", message_id=id_, received_at=now, outcome="stale", digest="d")
    Duplicate.objects.create(consumer="basket", message_id=id_, cause="resend", same_payload=True, digest="d")
    FailedAttempt.objects.create(
        foreign_id=id_, consumer="orders", worker="consumer-a", attempt=1, error_class="KeyError", detail="'x'",
        kind="transient",
    )  # fmt: skip
    entries = timeline(message)
    assert [e.at for e in entries] == sorted((e.at for e in entries), reverse=True)
    kinds = [e.kind for e in entries][::-1]
    assert kinds[0] == "committed" and {*kinds} == {
        "committed", "returned", "maybe_sent", "failed", "operated", "confirmed", "received", "handled", "stale",
        "duplicate",
    }  # fmt: skip
    texts = {e.kind: e for e in entries}
    assert texts["operated"].text == "ana retried it: bound now" and texts["operated"].worker == "ana"
    assert texts["maybe_sent"].level == "warn" and texts["duplicate"].level == "dup"
    assert "no queue is bound" in texts["returned"].text


def test_a_dead_message_says_why_and_what_it_holds_back() -> None:
    (entry,) = [e for e in timeline(dead(key="k")) if e.kind == "parked"]
    assert entry.text.startswith("Gave up after 10 failures: no queue is bound")
    assert entry.text.endswith("Later messages of its key wait.") and entry.level == "bad"


@pytest.fixture
def subscribed():
    for name, type_, using in (
        ("billing", "order.*", None), ("stock", "stock.#", None), ("far", "order.paid", "elsewhere"),
    ):  # fmt: skip
        subscribe(type_, consumer=name, using=using)(lambda message: None)
    yield
    for name in ("billing", "stock", "far"):
        forget(name)


@pytest.mark.usefixtures("subscribed")
def test_consumers_are_those_that_should_get_it_or_saw_it() -> None:
    message = dispatched()
    id_ = str(message.message_id)
    seen = {c.consumer: c for c in consumers(message) if c.consumer in ("billing", "stock", "far", "old")}
    assert {n: c.state for n, c in seen.items()} == {"billing": "not seen", "far": "not visible"}
    Receipt.objects.create(
        consumer="billing", message_id=id_, received_at=database_now(), outcome="processed", digest="d"
    )
    for _ in range(2):
        Duplicate.objects.create(
            consumer="billing", message_id=id_, cause="resend", same_payload=True, digest="d"
        )
    Handling.objects.create(
        consumer="old", message_id=id_, body=b"{}", digest="d", state="dead", attempts=3, error="no such order"
    )  # fmt: skip
    seen = {c.consumer: c for c in consumers(message) if c.consumer in ("billing", "stock", "far", "old")}
    assert {n: c.state for n, c in seen.items()} == {
        "billing": "processed",
        "far": "not visible",
        "old": "dead",
    }
    assert seen["billing"].duplicates == 2 and seen["old"].detail == "no such order"


def test_causes_and_effects_are_followed_and_a_circle_ends() -> None:
    root = pending(type="order.started")
    middle = pending(type="order.paid", causation_id=str(root.message_id))
    leaf = pending(type="order.shipped", causation_id=str(middle.message_id))
    assert causes(leaf) == [root, middle] and causes(root) == []
    assert effects(root) == [middle] and effects(leaf) == []
    foreign = pending(causation_id="not-a-uuid")
    assert causes(foreign) == []
    with transaction.atomic():
        own_cause = "0197c1f2-8a40-7b1e-9c55-0f6f5a1f2d11"
        circle = pending(message_id=own_cause, causation_id=own_cause)
    assert causes(circle) == []


def test_a_consumer_that_gave_up_says_when() -> None:
    message = dispatched()
    row = received(message, "dead", ago=60, error="no stock")
    Handling.objects.filter(pk=row.pk).update(ended_at=database_now())
    last, first = [e for e in timeline(message) if e.worker == "reports"]
    assert (first.kind, first.text) == ("received", "reports received it")
    assert (last.kind, last.text, last.level) == (
        "parked",
        "reports gave up after 3 failures: no stock",
        "bad",
    )
    assert last.at > first.at
