"""The states of an outgoing message, and which verb leads from where to where.

This table is the one place of the rule: the verbs, the buttons, the command line and the admin read it.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Derived: Pending (no failures: pending, else retrying), then Parked, then Dispatch."""

    PENDING = "pending"
    RETRYING = "retrying"
    DEAD = "dead"
    MARKED = "marked"
    DISCARDED = "discarded"
    DISPATCHED = "dispatched"


PARKED = (State.DEAD, State.MARKED, State.DISCARDED)
QUEUED = (State.PENDING, State.RETRYING)

VERBS: dict[str, dict[State, State]] = {
    "retry": {
        State.PENDING: State.PENDING,
        State.RETRYING: State.RETRYING,
        State.DEAD: State.PENDING,
    },
    "redispatch": {
        State.DISPATCHED: State.PENDING,
        State.MARKED: State.PENDING,
        State.DISCARDED: State.PENDING,
    },
    "mark": dict.fromkeys((State.PENDING, State.RETRYING, State.DEAD), State.MARKED),
    "discard": dict.fromkeys((State.PENDING, State.RETRYING, State.DEAD), State.DISCARDED),
}

CAUSES = ("first", "retry", "resend", "operator")
"""Why a message was sent: the first time, after a failure of its own, after a send of unknown outcome, by a person."""


def verbs_for(state: str) -> tuple[str, ...]:
    """The verbs that make sense in `state`, whatever else may refuse them (in flight, direct, scheduled)."""
    return tuple(verb for verb, pairs in VERBS.items() if state in pairs)
