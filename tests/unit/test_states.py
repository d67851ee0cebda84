"""The table of states and verbs, held against the contract and the database's constraints."""

from __future__ import annotations

from outbox_core.models import Parked
from outbox_core.states import PARKED, QUEUED, VERBS, State, verbs_for

CONTRACT = {
    "retry": {"pending": "pending", "retrying": "retrying", "dead": "pending"},
    "redispatch": {"dispatched": "pending", "marked": "pending", "discarded": "pending"},
    "mark": {"pending": "marked", "retrying": "marked", "dead": "marked"},
    "discard": {"pending": "discarded", "retrying": "discarded", "dead": "discarded"},
}


def test_the_table_is_the_contract() -> None:
    assert {v: {str(a): str(b) for a, b in pairs.items()} for v, pairs in VERBS.items()} == CONTRACT


def test_every_state_is_in_the_queue_or_parked_or_dispatched() -> None:
    assert {*QUEUED, *PARKED, State.DISPATCHED} == set(State)


def test_the_database_knows_the_same_parked_states() -> None:
    (known,) = [c for c in Parked._meta.constraints if c.name == "outbox_parked_state_known"]
    assert {s.value for s in PARKED} == set(known.condition.children[0][1])  # type: ignore[attr-defined]


def test_every_state_has_a_verb_that_leads_on() -> None:
    for state in State:
        assert verbs_for(state), state


def test_verbs_of_a_state_are_those_that_the_table_names() -> None:
    assert verbs_for("dead") == ("retry", "mark", "discard")
    assert verbs_for("dispatched") == ("redispatch",)
    assert verbs_for("unheard of") == ()
