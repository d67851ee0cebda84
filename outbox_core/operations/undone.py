"""What consumers have received and not done: counted for the verdict, the numbers and the command line alike."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outbox_core.models import Handling
from outbox_core.operations.counting import CAP, capped

GIVEN_UP = ("dead", "undecodable")
TRIED = ("retrying", "waiting")  # waiting: behind one of its key that is tried, or was given up


@dataclass(frozen=True, slots=True)
class Failing:
    """The message that a consumer has failed at for the longest time and still tries."""

    consumer: str
    since: datetime
    error: str


def count(using: str, *states: str) -> int:
    """How many stand in these states, up to the cap of `capped`. Index: handling_state."""
    return capped(_rows(using).filter(state__in=states))


def failing(using: str) -> Failing | None:
    """None if no consumer fails. A handler that asked for a later run (`RetryLater`) has not failed."""
    tried = _rows(using).filter(state="retrying").order_by("id").values("pk")[:CAP]
    row = (
        _rows(using)
        .filter(pk__in=tried, failures__gt=0)
        .order_by("received_at")
        .values_list("consumer", "received_at", "error")
        .first()
    )
    return Failing(*row) if row else None


def _rows(using: str) -> Any:
    return Handling.objects.using(using).order_by()
