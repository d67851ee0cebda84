"""The dedupe window: how long a receipt is sure to stand, and whether a send is older than that.

A receipt stands for the window after it was written and after the last send of its message, and for as long as the
message is queued or dead (see `retention`). Beyond it a copy may take effect again, so the window is what a person is
asked about before a second send.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from outbox_core.clock import database_now
from outbox_core.conf import settings
from outbox_core.models import Dispatch, Duplicate, Message, Parked, Pending
from outbox_core.operations.facts import Facts
from outbox_core.states import State

NEWEST = 2_000  # duplicates that the statistics look at
SHARE = 0.99
MARGIN = 2
_STEPS = [timedelta(hours=h) for h in (1, 2, 6, 12, 24, 48, 72, 24 * 7, 24 * 14, 24 * 30, 24 * 90)]


def window() -> timedelta:
    """How long a receipt stands at least."""
    return timedelta(days=max(settings.RETENTION["receipts"], settings.DEDUPE_WINDOW))


def is_over(facts: Facts, using: str = "default") -> bool:
    """Whether receipts of this message may be gone: it is not queued and not dead, and its last send (or the act
    that marked or discarded it) is older than the window."""
    parked, sent = facts.parked, facts.last_dispatch
    if facts.pending is not None or (parked is not None and parked.state == State.DEAD):
        return False
    last = max((row.at for row in (parked, sent) if row is not None), default=None)
    return last is not None and last < database_now(using) - window()


def protected(messages: Iterable[Message], using: str, cutoff: datetime) -> set[int]:
    """The row ids of those whose receipts must stand: queued or dead, or sent or acted on at `cutoff` or later."""
    pks = [m.pk for m in messages]
    parked = Parked.objects.using(using).filter(Q(state="dead") | Q(at__gte=cutoff), pk__in=pks)
    return {
        *Pending.objects.using(using).filter(pk__in=pks).values_list("pk", flat=True),
        *parked.values_list("pk", flat=True),
        *Dispatch.objects.using(using)
        .filter(message__in=pks, at__gte=cutoff)
        .values_list("message", flat=True),
    }


@dataclass(frozen=True, slots=True)
class Gaps:
    """How long after the first copy the newest `count` duplicates came: nearly all (`SHARE`) within `most`, and the
    last of them after `longest`."""

    count: int
    most: timedelta
    longest: timedelta

    @property
    def suggested(self) -> timedelta:
        """A window of `MARGIN` times the longest gap, as a round time."""
        least = self.longest * MARGIN
        return next((step for step in _STEPS if step >= least), least)


def gaps(using: str = "default") -> Gaps | None:
    """Over the newest duplicates, those that a person caused apart; None if there are none. A copy that came when
    its receipt was gone is not among them: it took effect."""
    newest = Duplicate.objects.using(using).order_by("-pk").values_list("cause", "gap")[:NEWEST]
    found = sorted(gap for cause, gap in newest if gap is not None and cause != "operator")
    if not found:
        return None
    return Gaps(len(found), found[max(0, round(len(found) * SHARE) - 1)], found[-1])
