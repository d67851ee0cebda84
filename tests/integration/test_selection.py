"""Selections: every filter, pages in both directions, and the bound on what one page looks at."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from outbox_core.clock import database_now
from outbox_core.errors import InvalidMessage
from outbox_core.models import FailedAttempt, Message, Pending
from outbox_core.operations import selection as module
from outbox_core.operations.selection import Selection, matching, page
from outbox_core.operations.verbs import act
from outbox_core.states import State
from tests.integration.situations import ANA, confirm, dead, dispatched, pending, retrying

pytestmark = pytest.mark.django_db(transaction=True)


def ids(selection: Selection, **arguments: object) -> list[int]:
    return [m.pk for m in page(selection, **arguments).messages]  # type: ignore[arg-type]


def one_of_each() -> dict[str, Message]:
    made = {"pending": pending(), "retrying": retrying(), "dead": dead(), "dispatched": dispatched()}
    for verb, state in (("mark", "marked"), ("discard", "discarded")):
        made[state] = pending()
        act(verb, made[state].message_id, actor=ANA, reason="r")
    return made


def test_each_state_finds_its_own_and_no_state_finds_all_newest_first() -> None:
    made = one_of_each()
    again = dispatched()
    act("redispatch", again.message_id, actor=ANA, reason="r")
    for state in State:
        expected = [again.pk, made[state].pk] if state == State.PENDING else [made[state].pk]
        assert ids(Selection(state=state)) == expected, state
        # The same by way of the message's own index, whatever the state.
        keyed = Selection(state=state, ids=tuple(m.message_id for m in made.values()))
        assert ids(keyed) == [made[state].pk], state
    assert ids(Selection()) == sorted([again.pk, *(m.pk for m in made.values())], reverse=True)


def test_a_message_that_was_sent_twice_is_listed_once() -> None:
    message = dispatched()
    act("redispatch", message.message_id, actor=ANA, reason="r")
    confirm(message, message.pk, 2)
    assert ids(Selection(state="dispatched")) == [message.pk]


@pytest.mark.parametrize("state", ["", "pending", "dispatched"])
def test_filters_by_type_destination_key_and_correlation(state: str) -> None:
    def make(type: str, **arguments: str) -> Message:
        message = pending(type, **arguments)
        if state == "dispatched":
            confirm(message, message.pk, 1)
        return message

    a = make("order.paid", key="k-1", correlation_id="c-1")
    b = make("order.shipped", key="k-2")
    c = make("stock.low", destination="alerts/urgent")
    for selection, expected in (
        (Selection(state, type="order.paid"), [a]), (Selection(state, type="order.*"), [b, a]),
        (Selection(state, type="*.low"), [c]), (Selection(state, type="order.pai"), []),
        (Selection(state, destination="alerts/urgent"), [c]), (Selection(state, key="k-2"), [b]),
        (Selection(state, correlation="c-1"), [a]), (Selection(state, type="order.*", key="k-1"), [a]),
        (Selection(state, ids=(b.message_id, c.message_id)), [c, b]),
    ):  # fmt: skip
        assert ids(selection) == [m.pk for m in expected], selection


def test_an_error_is_a_class_a_fingerprint_or_a_part_of_its_text() -> None:
    one, other, pending_ = dead(), retrying(), pending()
    for error in ("Unroutable", "NO QUEUE is bound"):
        assert ids(Selection("dead", error=error)) == [one.pk]
        assert ids(Selection("retrying", error=error)) == [other.pk]
    assert (
        ids(Selection("dead", error="f" * 16)) == [one.pk] and ids(Selection("dead", error="TooLarge")) == []
    )
    FailedAttempt.objects.create(
        message=pending_, worker="w", attempt=1, error_class="TooLarge", detail="2 MiB",
        fingerprint="e" * 16, kind="permanent",
    )  # fmt: skip
    for error in ("TooLarge", "2 mib", "e" * 16):
        assert ids(Selection(error=error)) == [pending_.pk]


def test_time_is_about_the_commit() -> None:
    first, second = pending(), dispatched()
    assert ids(Selection(until=first.created_at)) == [first.pk]
    assert ids(Selection(since=second.created_at)) == [second.pk]
    assert ids(Selection("dispatched", since=second.created_at)) == [second.pk]
    assert ids(Selection("dispatched", until=first.created_at)) == []
    assert ids(Selection("pending", since=second.created_at)) == []
    assert ids(Selection(since=database_now() + timedelta(hours=1))) == []
    assert ids(Selection(older_than=3600)) == [] and len(ids(Selection(older_than=0))) == 2
    assert ids(Selection("dispatched", older_than=0)) == [second.pk]


@pytest.mark.parametrize("state", ["", "pending", "dispatched", "dead"])
def test_pages_lead_there_and_back(state: str) -> None:
    make = {"": pending, "pending": pending, "dispatched": dispatched, "dead": dead}[state]
    expected = [make().pk for _ in range(7)][::-1]
    selection = Selection(state)
    first = page(selection, limit=3)
    second = page(selection, after=first.next, limit=3)
    third = page(selection, after=second.next, limit=3)
    assert [m.pk for p in (first, second, third) for m in p.messages] == expected
    assert first.previous is None and third.next is None
    back = page(selection, before=third.previous, limit=3)
    assert back.messages == second.messages and back.next and back.previous
    front = page(selection, before=back.previous, limit=3)
    assert front.messages == first.messages and front.previous is None
    assert page(selection, after=front.next, limit=3).messages == second.messages
    newer = make()
    assert page(selection, before=front.messages and module.Driver.choose(selection, "default").cursor(
        _place(front.messages[0], state)), limit=3).messages == [newer]  # fmt: skip


def _place(message: Message, state: str) -> int:
    return message.dispatches.get().pk if state == "dispatched" else message.pk  # type: ignore[attr-defined]


def test_a_page_looks_at_so_many_and_then_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOWS", (2, 3))
    wanted = pending("rare")
    others = [pending() for _ in range(7)]
    first = page(Selection(type="r*"))
    assert first.messages == [] and first.searched_to == others[2].created_at and first.next
    second = page(Selection(type="r*"), after=first.next)
    assert second.messages == [wanted] and second.next is None and second.searched_to is None


def test_a_page_needs_few_queries_and_no_payload() -> None:
    for _ in range(60):
        pending()
    with CaptureQueriesContext(connection) as queries:
        found = page(Selection("pending"), limit=50)
    assert len(found.messages) == 50 and len(queries) <= 3
    assert "payload" in found.messages[0].get_deferred_fields()


def test_matching_reads_all_in_batches_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    expected = [pending().pk for _ in range(10)][::-1]
    assert list(matching(Selection("pending"))) == expected
    assert list(matching(Selection("pending", limit=4))) == expected[:4]
    found = matching(Selection("pending"))
    assert next(found) == expected[0]
    pending()
    Pending.objects.filter(pk=expected[1]).delete()
    assert list(found)[-1] == expected[-1]


@pytest.mark.parametrize(
    ("selection", "cursors", "field"),
    [(Selection("lost"), {}, "state"), (Selection("dead"), {"after": "x"}, "after"),
     (Selection("dead"), {"after": "p7"}, "after"), (Selection(), {"before": "m" + "9" * 40}, "before"),
     (Selection(), {"after": "m1", "before": "m2"}, "before")],
)  # fmt: skip
def test_bad_input_names_its_field(selection: Selection, cursors: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidMessage) as error:
        page(selection, **cursors)
    assert error.value.field == field


def test_a_selection_tells_what_is_set() -> None:
    since = database_now()
    message = pending()
    selection = Selection("dead", since=since, ids=(message.message_id,), limit=3)
    assert selection.as_json() == {
        "state": "dead", "since": since.isoformat(), "ids": [str(message.message_id)], "limit": 3,
    }  # fmt: skip
    assert Selection(limit=3).is_empty and not selection.is_empty
