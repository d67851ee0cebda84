"""What stands in the queue after a run, held against what the database says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from django.db import connection
from django.db.models import Max

from outbox_core.models import Dispatch, FailedAttempt, Message, Operation, Parked, Pending
from outbox_core.operations.verbs import act
from outbox_core.transports.base import Delivery, Queue
from tests.chaos.meddling import Meddler
from tests.integration.relaying import arrivals, first_copies
from tests.integration.situations import ANA


class Evidence:
    """The arrivals of a run in which nothing is pending any more."""

    def __init__(self, found: Sequence[Delivery], meddler: Meddler) -> None:
        self.found, self.meddler = found, meddler
        self.rows = {str(m.message_id): m for m in Message.objects.all()}
        self.copies: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in found:
            self.copies[str(delivery.message_id)].append(delivery)

    @classmethod
    def collect(cls, witness: Queue, meddler: Meddler) -> Evidence:
        """Everything that stands in the queue."""
        dispatched = Message.objects.filter(dispatches__isnull=False).distinct().count()
        return cls(arrivals(witness, dispatched, 60), meddler)

    @property
    def counts(self) -> Counter[str]:
        return Counter(
            messages=len(self.rows), arrived=len(self.found), distinct=len(self.copies),
            maybe_sent=FailedAttempt.objects.filter(kind="unknown").count(),
            dispatches=Dispatch.objects.count(), parked=Parked.objects.count(),
        )  # fmt: skip

    def check(self) -> None:
        """All of it; each check names what it finds."""
        ghosts = [
            id_ for id_ in self.copies if id_ not in self.rows or b'"ghost":true' in self.copies[id_][0].body
        ]
        assert ghosts == [], "sent, though their transaction rolled back"
        assert self.lost() == [], "dispatched and never arrived"
        assert self.beyond_attempts() == [], (
            "sent once more than the database knows: after an accepted discard"
        )
        assert self.sent_though_parked() == [], "sent after an accepted discard or mark"
        assert self.unsaid_repeats() == [], "came again and did not say so"
        assert self.out_of_order() == [], "first copies of a key out of order"
        assert self.counted_twice() == [], "one attempt failed twice"

    def lost(self) -> list[Message]:
        dispatched = set(Dispatch.objects.values_list("message", flat=True))
        return [m for id_, m in self.rows.items() if m.pk in dispatched and id_ not in self.copies]

    def beyond_attempts(self) -> list[Any]:
        """Attempts on the wire are at most those that are written down: what is sent after a discard is one more."""
        known: dict[int, int] = defaultdict(int)
        for rows, field in (
            (Dispatch.objects.values_list("message"), "attempt"),
            (FailedAttempt.objects.filter(consumer="").values_list("message"), "attempt"),
            (Parked.objects.values_list("message"), "attempts"),
        ):
            for message, attempts in rows.annotate(most=Max(field)).order_by():
                known[message] = max(known[message], attempts)
        return [
            (self.rows[id_].pk, attempts, known[self.rows[id_].pk])
            for id_, copies in self.copies.items()
            if (attempts := max(c.headers["outbox-attempt"] for c in copies)) > known[self.rows[id_].pk]
        ]

    def sent_though_parked(self) -> list[Any]:
        """Confirmed although it was marked or discarded and not redispatched. Left out is what may well be: whatever
        was maybe sent before, and what a producer in direct mode may have sent (it has no key)."""
        maybe = set(FailedAttempt.objects.filter(kind="unknown").values_list("message", flat=True))
        events: dict[int, list[tuple[Any, str]]] = defaultdict(list)
        for id_, verb, at in Operation.objects.exclude(verb="retry").values_list("message_id", "verb", "at"):
            events[self.rows[id_].pk].append((at, verb))
        for message, at in Dispatch.objects.values_list("message", "at"):
            events[message].append((at, "sent"))
        wrong = []
        for message in [m.pk for m in self.rows.values() if m.key and m.pk not in maybe]:
            verbs = [what for _, what in sorted(events[message])]
            if any(one in ("mark", "discard") and two == "sent" for one, two in pairwise(verbs)):
                wrong.append((message, verbs))
        return wrong

    def unsaid_repeats(self) -> list[Any]:
        return [
            (self.rows[id_].pk, attempts)
            for id_, copies in self.copies.items()
            if len(attempts := [c.headers["outbox-attempt"] for c in copies]) != len(set(attempts))
        ]

    def out_of_order(self) -> list[Any]:
        """Positions of first copies rise per key, but where a person let others pass."""
        highest: dict[str, tuple[int, int]] = {}
        wrong = []
        for delivery in first_copies(self.found):
            message = self.rows[str(delivery.message_id)]
            if not message.key or "outbox-late" in delivery.headers or self.parked_once(message):
                continue
            place = (delivery.headers["outbox-position"], message.pk)
            if place < highest.get(message.key, (0, 0)):
                wrong.append((message.key, highest[message.key], place))
            highest[message.key] = max(place, highest.get(message.key, (0, 0)))
        return wrong

    def parked_once(self, message: Message) -> bool:
        """A copy that was on its way when it was marked or discarded may follow what passed it since."""
        return bool({"mark", "discard"} & set(self.meddler.done.get(message.pk, ())))

    def counted_twice(self) -> list[Any]:
        failed = Counter(FailedAttempt.objects.filter(consumer="").values_list("message", "attempt"))
        return [pair for pair, times in failed.items() if times > 1]


def deadlocks() -> int:
    """How many PostgreSQL has broken in this database."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def come_to_rest(wait_until: Any) -> None:
    """Let everything that may go go; then what is dead is discarded, so that what it holds back goes too."""
    held = Parked.objects.filter(holds=True).values("key")
    only_held = Pending.objects.exclude(key__in=held)
    wait_until(
        lambda: not only_held.exists(), 180, what="nothing is pending but what dead messages hold back"
    )
    wait_until(lambda: discard_dead() or not Pending.objects.exists(), 180, what="nothing is pending")


def discard_dead() -> None:
    for message in Parked.objects.filter(state="dead").values_list("message", flat=True):
        act("discard", message, actor=ANA, reason="the run is over")
