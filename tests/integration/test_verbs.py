"""The verbs: each pair of verb and state, each refusal, and the audit row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from outbox_core.clock import database_now
from outbox_core.errors import InvalidMessage, StateChanged
from outbox_core.models import Dispatch, FailedAttempt, Lease, Message, Operation, Parked, Partition, Pending
from outbox_core.operations import audit
from outbox_core.operations.inspect import standing
from outbox_core.operations.verbs import act
from outbox_core.states import VERBS, State
from tests.integration import situations
from tests.integration.situations import ANA, aside, dead, dispatched, own, pending, retrying

pytestmark = pytest.mark.django_db(transaction=True)


def do(verb: str, message: Message, **arguments: Any) -> Any:
    return act(verb, message.message_id, actor=ANA, reason="queue is bound now", **arguments)


def refused(verb: str, message: Message, **arguments: Any) -> StateChanged:
    """The refusal; nothing was written."""
    before = snapshot()
    with pytest.raises(StateChanged) as refusal:
        do(verb, message, **arguments)
    assert snapshot() == before
    return refusal.value


def snapshot() -> list[Any]:
    return [list(model.objects.order_by("pk").values()) for model in (Pending, Parked, Dispatch, Operation)]


def marked(key: str = "") -> Message:
    message = pending(key=key)
    do("mark", message)
    return message


def discarded(key: str = "") -> Message:
    message = pending(key=key)
    do("discard", message)
    return message


MAKE = {
    State.PENDING: pending, State.RETRYING: retrying, State.DEAD: dead, State.MARKED: marked,
    State.DISCARDED: discarded, State.DISPATCHED: dispatched,
}  # fmt: skip


def test_retry_of_a_back_off_is_due_now() -> None:
    message = retrying()
    result = do("retry", message)
    row = Pending.objects.get(pk=message.pk)
    assert (result.outcome, result.state) == ("done", "retrying")
    assert row.available_at is not None and abs(row.available_at - database_now()) < timedelta(seconds=5)
    assert (row.failures, row.attempts, row.operation) == (2, 2, None)
    assert Operation.objects.get().verb == "retry"


def test_retry_of_what_is_due_changes_nothing_and_writes_nothing() -> None:
    message = pending()
    before = snapshot()
    result = do("retry", message)
    assert (result.outcome, result.state, result.operation) == ("unchanged", "pending", None)
    assert snapshot() == before


def test_retry_of_what_is_set_aside_leaves_it_behind_the_other() -> None:
    retrying(key="k")
    message = aside(key="k")
    assert do("retry", message).outcome == "unchanged"
    assert Pending.objects.get(pk=message.pk).available_at is None


def test_retry_of_a_dead_one_goes_to_its_old_place_with_no_failures() -> None:
    message = dead(key="k", attempts=10)
    follower = aside(key="k")
    result = do("retry", message)
    row = Pending.objects.get(pk=message.pk)
    assert (result.outcome, result.state) == ("done", "pending")
    assert (row.position, row.failures, row.attempts, row.cause) == (message.pk, 0, 10, "operator")
    assert row.operation == result.operation.pk and not row.late and row.first_position is None
    assert not Parked.objects.exists()
    # It is first of its key again, so what was set aside behind it waits on.
    assert Pending.objects.get(pk=follower.pk).available_at is None


def test_retry_of_a_dead_one_frees_an_earlier_one_that_only_its_hold_kept_back() -> None:
    earlier = aside(key="k")
    message = dead(key="k")
    do("retry", message)
    assert Pending.objects.get(pk=earlier.pk).available_at is not None


def test_retry_of_a_dead_one_that_held_nothing_back_says_that_it_is_late() -> None:
    message = dead(key="k", holds=False)
    do("retry", message)
    assert Pending.objects.get(pk=message.pk).late
    without_key = dead()
    do("retry", without_key)
    assert not Pending.objects.get(pk=without_key.pk).late


def test_redispatch_of_a_dispatched_one_goes_to_the_end_and_keeps_its_first_position() -> None:
    message = dispatched(key="k", attempts=3)
    later = pending(key="k")
    result = do("redispatch", message)
    row = Pending.objects.get(pk=message.pk)
    assert row.position > later.pk and row.first_position == message.pk
    assert (row.attempts, row.failures, row.cause, row.late) == (3, 0, "operator", False)
    assert row.operation == result.operation.pk
    assert standing(message).state == "pending" and Dispatch.objects.count() == 1


@pytest.mark.parametrize("make", [marked, discarded])
def test_redispatch_of_one_that_was_never_sent_is_late_and_takes_its_new_place(make: Any) -> None:
    message = make(key="k")
    do("redispatch", message)
    row = Pending.objects.get(pk=message.pk)
    assert row.late and row.first_position is None and row.position > message.pk and row.attempts == 0
    assert not Parked.objects.exists()


def test_redispatch_of_one_that_may_have_been_sent_keeps_that_place() -> None:
    message = retrying(key="k", failures=2)
    do("discard", message)
    do("redispatch", message)
    row = Pending.objects.get(pk=message.pk)
    assert row.first_position == message.pk and row.attempts == 2 and row.late


@pytest.mark.parametrize(("verb", "state"), [("mark", "marked"), ("discard", "discarded")])
@pytest.mark.parametrize("make", [pending, retrying, dead])
def test_mark_and_discard_park_it_and_its_key_goes_on(make: Any, verb: str, state: str) -> None:
    message = make(key="k")
    follower = aside(key="k")
    result = do(verb, message)
    parked = Parked.objects.get(pk=message.pk)
    assert (result.outcome, result.state, parked.state, parked.holds) == ("done", state, state, False)
    assert parked.operation == result.operation.pk and parked.position == message.pk
    assert not Pending.objects.filter(pk=message.pk).exists()
    assert Pending.objects.get(pk=follower.pk).available_at is not None


def test_a_scheduled_one_can_be_discarded_but_not_retried() -> None:
    message = pending(delay=3600)
    refusal = refused("retry", message)
    assert "scheduled for" in str(refusal) and refusal.actual_state == "pending"
    assert do("discard", message).state == "discarded"


@pytest.mark.parametrize(("verb", "state"), [(v, s) for v in VERBS for s in State if s not in VERBS[v]])
def test_every_other_pair_is_refused_with_its_state(verb: str, state: State) -> None:
    message = MAKE[state]()
    refusal = refused(verb, message)
    assert refusal.actual_state == state and refusal.by and refusal.at


@pytest.mark.parametrize("verb", ["retry", "mark", "discard"])
def test_in_flight_is_refused_with_the_dispatcher_and_since_when(verb: str) -> None:
    message = retrying()
    lease = own("dispatcher-b", in_flight=[message])
    refusal = refused(verb, message)
    assert (refusal.by, refusal.at) == ("dispatcher-b", lease.turned_at)
    assert "is being sent by dispatcher-b since" in str(refusal)


def test_what_an_expired_dispatcher_may_have_sent_is_taken_over_first_and_then_acted_on() -> None:
    message = pending()
    own("gone", in_flight=[message], seconds=-1)
    assert do("discard", message).state == "discarded"
    assert not Lease.objects.exists() and not Partition.objects.exclude(lease=None).exists()
    assert FailedAttempt.objects.get().kind == "unknown"
    assert Parked.objects.get(pk=message.pk).attempts == 1


def test_a_direct_one_is_refused_inside_its_grace_and_not_after_it() -> None:
    message = pending()
    rows = Pending.objects.filter(pk=message.pk)
    rows.update(direct=True, available_at=database_now() + timedelta(seconds=60))
    refusal = refused("discard", message)
    assert "its producer may be sending it" in str(refusal) and refusal.by == message.source
    rows.update(available_at=database_now() - timedelta(seconds=1))
    assert do("discard", message).state == "discarded"


def test_a_stale_version_is_refused_with_who_changed_it_and_when() -> None:
    message = dead()
    seen = standing(message).version
    do("retry", message, version=seen)
    refusal = refused("retry", message, version=seen)
    last = Operation.objects.get()
    assert (refusal.actual_state, refusal.by, refusal.at) == ("pending", "ana", last.at)


def test_a_version_from_before_a_send_is_refused_with_the_dispatcher() -> None:
    message = pending()
    seen = standing(message).version
    sent = situations.confirm(message, message.pk, 1, "dispatcher-c")
    refusal = refused("discard", message, version=seen)
    assert (refusal.actual_state, refusal.by, refusal.at) == ("dispatched", "dispatcher-c", sent.at)


def test_a_further_failure_in_the_same_state_makes_no_page_stale() -> None:
    message = retrying(failures=2)
    seen = standing(message).version
    Pending.objects.filter(pk=message.pk).update(failures=3, attempts=3)
    assert do("retry", message, version=seen).outcome == "done"


def test_a_double_click_has_one_effect_and_one_audit_row() -> None:
    message = dispatched()
    seen = standing(message).version
    do("redispatch", message, version=seen)
    refused("redispatch", message, version=seen)
    assert Operation.objects.count() == 1 and Pending.objects.count() == 1


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501, "a\0b", "\ud800"])
def test_a_bad_reason_names_the_field_and_writes_nothing(reason: str) -> None:
    message = dead()
    before = snapshot()
    with pytest.raises(InvalidMessage) as error:
        act("retry", message.message_id, actor=ANA, reason=reason)
    assert error.value.field == "reason" and snapshot() == before


def test_an_unknown_message_or_verb_is_named() -> None:
    with pytest.raises(Message.DoesNotExist):
        act("retry", "not-a-uuid", actor=ANA, reason="r")
    with pytest.raises(Message.DoesNotExist):
        act("retry", "00000000-0000-0000-0000-000000000000", actor=ANA, reason="r")
    with pytest.raises(InvalidMessage) as error:
        act("resend", pending().message_id, actor=ANA, reason="r")
    assert error.value.field == "verb"


def test_the_audit_row_says_who_what_why_and_what_changed() -> None:
    message = dead(key="k")
    before = standing(message).version
    do("discard", message, selection={"state": "dead", "older_than": 0.5})
    row = Operation.objects.get()
    assert (row.actor_id, row.actor, row.origin, row.remote) == ("7", "ana", "dashboard", "10.0.0.7")
    assert (row.verb, row.reason, row.outcome) == ("discard", "queue is bound now", "done")
    assert row.message_id == str(message.message_id) and row.selection["state"] == "dead"
    assert row.before["state"] == "dead" and row.before["version"] == before and row.before["holds"]
    assert row.after["state"] == "discarded"
    assert audit.verify() == []
