"""The why line, for each state and each thing that a message may wait for; and advice for each error."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dashboard import explain
from dashboard.advice import ADVICE, advice_for
from outbox_core.models import Dispatch, Message, Operation, Parked, Pending
from outbox_core.operations.inspect import EARLIER_CAP, Standing, Wait

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MESSAGE = Message(pk=7, type="order.paid", key="order-1", destination="events")


def standing(state: str, *, waits: Wait | None = None, **rows) -> Standing:
    return Standing(
        state,
        f"{state}.0.0",
        rows.get("pending"),
        rows.get("parked"),
        rows.get("dispatch"),
        rows.get("operation"),
        waits or Wait(),
    )


def waiting(kind: str, failures: int = 0, error: str = "", error_class: str = "", **wait) -> explain.Why:
    row = Pending(failures=failures, attempts=failures, last_error=error, error_class=error_class)
    return explain.why(
        MESSAGE, standing("retrying" if failures else "pending", pending=row, waits=Wait(kind, **wait)), NOW
    )


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (Wait("due", since=NOW), "Due: the next turn of its dispatcher sends it."),
        (Wait("scheduled", until=NOW + timedelta(hours=2)), "Delayed by its producer: due in 2 h."),
        (Wait("backoff", until=NOW + timedelta(seconds=18)), "The next try is in 18 s."),
        (
            Wait("direct", until=NOW + timedelta(seconds=4)),
            "Its producer is sending it directly; a dispatcher takes over in 4.0 s.",
        ),
        (Wait("in_flight", by="d-1", since=NOW - timedelta(seconds=12)), "Being sent by d-1 since 12 s ago."),
        (Wait("behind", by="x", earlier=1), "Waits for 1 earlier message of its key order-1."),
        (
            Wait("behind", by="x", earlier=EARLIER_CAP + 1),
            "Waits for 1,000+ earlier messages of its key order-1.",
        ),
        (
            Wait("held", by="x", since=NOW - timedelta(minutes=3)),
            "Held back by a dead message of its key order-1, for 3 min.",
        ),
        (Wait("no_owner"), "No dispatcher owns its partition."),
        (Wait("destination"), "Its destination takes nothing at the moment: one message is tried at a time."),
        (
            Wait("no_owner", by="d-1", since=NOW - timedelta(minutes=5)),
            "No live dispatcher owns its partition: d-1 was the last, 5 min ago.",
        ),
    ],
)
def test_a_pending_message_says_what_it_waits_for(wait, text):
    why = explain.why(MESSAGE, standing("pending", pending=Pending(), waits=wait), NOW)
    assert why.text == text
    assert why.link == ("x" if wait.kind in ("behind", "held") else "")


def test_a_retrying_message_names_its_failures_and_its_next_try():
    why = waiting(
        "backoff", 3, 'no exchange "billing"', "ExchangeNotFound", until=NOW + timedelta(seconds=18)
    )
    assert (
        why.text == 'Failed 3 times of 10: ExchangeNotFound: no exchange "billing". The next try is in 18 s.'
    )
    assert why.level == "warn"
    assert "outbox_topology" in why.advice


def test_a_failure_of_the_road_says_that_it_does_not_count():
    why = waiting(
        "backoff", 0, "RabbitMQ is not reachable", "BrokerUnreachable", until=NOW + timedelta(seconds=5)
    )
    assert "does not count towards dead" in why.detail


def test_a_dead_message_says_that_nobody_sends_it_and_who_waits():
    parked = Parked(state="dead", failures=10, holds=True, error_class="Unroutable", error="x")
    why = explain.why(MESSAGE, standing("dead", parked=parked), NOW, behind=2)
    assert why.text == (
        "Gave up after 10 failures: the broker returned it, since no queue is bound to “order.paid” "
        "on exchange “events”. "
        "It will not be sent again unless someone retries it."
    )
    assert why.detail == "2 later messages of key order-1 wait behind it."
    assert why.level == "bad"


def test_what_a_person_did_is_told_with_the_reason():
    operation = Operation(actor="ana", reason="delivered by hand")
    for state in ("marked", "discarded"):
        why = explain.why(MESSAGE, standing(state, parked=Parked(state=state), operation=operation), NOW)
        assert why.detail == 'By ana: "delivered by hand"'


def test_a_dispatched_message_names_the_worker_and_a_returned_one_warns():
    sent = Dispatch(attempt=2, worker="d-1", returned=False)
    assert "attempt 2" in explain.why(MESSAGE, standing("dispatched", dispatch=sent), NOW).text
    returned = explain.why(
        MESSAGE, standing("dispatched", dispatch=Dispatch(attempt=1, worker="d", returned=True)), NOW
    )
    assert returned.level == "warn"
    assert "no queue was bound" in returned.text
    assert "pruned" in explain.why(MESSAGE, standing("dispatched"), NOW).text


def test_every_error_that_the_transports_raise_has_its_advice():
    folder = Path(explain.__file__).parents[1] / "outbox_core" / "transports"
    source = "\n".join(path.read_text() for path in folder.glob("*.py"))
    named = set(re.findall(r'Outcome\.\w+, "([A-Z]\w+)"', source)) | set(
        re.findall(r'Unsendable\(\s*"(\w+)"', source)
    )
    named |= set(re.findall(r'\d{3}: "([A-Z]\w+)"', source))
    assert len(named) > 8
    assert named - set(ADVICE) == set()
    assert advice_for("ValueError") != ""
    assert advice_for("due") == ""
