"""What can become of a received message."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a delivery or of a kept message. All but BUSY are committed, so a delivery can be acked."""

    HANDLED = "handled"
    STALE = "stale"  # older than what was applied for its key: no effect
    DUPLICATE = "duplicate"  # seen before: no effect
    KEPT = "kept"  # in Handling: to be run, or run again, from there
    DEAD = "dead"
    UNDECODABLE = "undecodable"
    BUSY = "busy"  # another copy is being handled right now: look again soon
    GONE = "gone"  # of a kept message: someone else has dealt with it


class BrokenTransaction(Exception):
    """The handler left its transaction in a state that cannot commit."""
