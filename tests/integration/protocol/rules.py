"""What must hold after every step of a run, whatever was done. Each rule raises with what it found."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from outbox_core.models import Dispatch, FailedAttempt, Lease, Message, Parked, Pending
from outbox_core.outbox.leases import decode
from outbox_core.transports.base import Outcome, Send
from tests.integration.protocol.broker import Broker, Line


class Broken(AssertionError):
    """A rule of the protocol does not hold."""


def need(condition: bool, *what: Any) -> None:
    if not condition:
        raise Broken(*what)


class Rules:
    """Watches the broker and the database. `without_order`: messages of which no order is
    promised, since a person let others pass them, or their transaction committed after later ones."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.without_order: set[int] = set()
        self._written: set[tuple[int, int]] = set()  # message and attempt
        self._highest: dict[str, tuple[int, int]] = {}
        self._came: set[int] = set()
        self._attempts: dict[int, int] = defaultdict(int)
        self._failed: Counter[int] = Counter()
        self._seen = 0
        self._owed: dict[int, int] = {}  # redispatched: the attempts before

    # As it happens.

    def submitted(self, line: Line, send: Send) -> None:
        row = send.tag[0].id
        need(row not in line.owed, "submitted twice", row)
        need(row in in_flight_of(line.owner.memory.token), "submitted without a committed in_flight", row)

    def wrote(self, line: Line, send: Send) -> None:
        """Under a lease that says so, never for the second time, and never what a person has parked."""
        row, attempt = send.tag[0], send.headers["outbox-attempt"]
        need(row.id in in_flight_of(line.owner.memory.token), "written without a committed in_flight", row)
        need(not Parked.objects.filter(pk=row.id).exists(), "sent after an accepted discard", row)
        dead = Parked.objects.filter(state="dead", key=row.key, position__lt=row.position).exclude(key="")
        need(not dead.exists(), "sent although its key is held", row)
        need((row.id, attempt) not in self._written, "an attempt was written twice", row, attempt)
        self._written.add((row.id, attempt))

    def written_directly(self, send: Send) -> None:
        self._written.add((send.tag[0].id, send.headers["outbox-attempt"]))

    def arrived(self, send: Send) -> None:
        """First copies of a key come in order, unless none is promised."""
        row, headers = send.tag[0], send.headers
        if row.id in self._came:
            need(headers["outbox-attempt"] > 1 or (row.id, 1) in self._written, "an unsaid repeat", row)
            return
        self._came.add(row.id)
        if not row.key or "outbox-late" in headers or row.id in self.without_order:
            return
        place = (headers["outbox-position"], row.id)
        need(place > self._highest.get(row.key, (0, 0)), "out of order", row.key, place, self._highest)
        self._highest[row.key] = place

    def redispatched(self, message: int) -> None:
        self._owed[message] = Pending.objects.get(pk=message).attempts

    # After every step.

    def check(self) -> None:
        pending = {p.pk: p for p in Pending.objects.all()}
        parked = {p.pk: p for p in Parked.objects.all()}
        self._one_state(pending, parked)
        self._nothing_waits_for_nothing(pending, parked)
        self._in_flight_once()
        self._counters([*pending.values(), *parked.values()])
        self._facts()
        self._redispatches({*pending, *parked})

    def _one_state(self, pending: dict[int, Pending], parked: dict[int, Parked]) -> None:
        need(not pending.keys() & parked.keys(), "queued and parked", pending.keys() & parked.keys())
        known = {*pending, *parked, *Dispatch.objects.values_list("message", flat=True)}
        messages = set(Message.objects.values_list("pk", flat=True))
        need(messages <= known, "lost", messages - known)
        need(known <= messages, "an orphan", known - messages)

    def _nothing_waits_for_nothing(self, pending: dict[int, Pending], parked: dict[int, Parked]) -> None:
        held = {p.key for p in parked.values() if p.holds}
        first: dict[str, Pending] = {}
        for row in sorted(pending.values(), key=lambda p: p.position):
            if row.key and not row.scheduled:
                first.setdefault(row.key, row)
        for key, row in first.items():
            waits = row.available_at is not None or row.stranded
            need(waits or key in held, "set aside behind nothing", row.pk)

    def _in_flight_once(self) -> None:
        times = Counter(id_ for lease in Lease.objects.all() for id_ in decode(lease.in_flight))
        need(max(times.values(), default=0) <= 1, "in flight twice", times.most_common(3))

    def _counters(self, rows: list[Any]) -> None:
        """Attempts never fall; a failure counts at most as often as the broker refused."""
        for send, outcome in self.broker.judged[self._seen :]:
            self._failed[send.tag[0].id] += outcome not in (Outcome.CONFIRMED, Outcome.ROAD)
        self._seen = len(self.broker.judged)
        for row in rows:
            need(row.attempts >= self._attempts[row.pk], "attempts fell", row.pk, self._attempts[row.pk])
            self._attempts[row.pk] = row.attempts
            need(row.failures <= self._failed[row.pk], "a failure was counted twice", row.pk)

    def _facts(self) -> None:
        """Each send is confirmed or failed once, and what was confirmed is there."""
        confirmed = Counter(Dispatch.objects.values_list("message", "attempt"))
        need(max(confirmed.values(), default=0) <= 1, "confirmed twice", confirmed.most_common(3))
        for message, attempt in confirmed:
            self._attempts[message] = max(self._attempts[message], attempt)
            need(message in self._came, "dispatched, and it never arrived", message)
        failed = Counter(FailedAttempt.objects.values_list("message", "attempt"))
        need(max(failed.values(), default=0) <= 1, "failed twice", failed.most_common(3))

    def _redispatches(self, owed: set[int]) -> None:
        """What was redispatched stays in the queue until it was sent again."""
        for message in [m for m in self._owed if m not in owed]:
            before = self._owed.pop(message)
            again = Dispatch.objects.filter(message=message, attempt__gt=before)
            gone = not Message.objects.filter(pk=message).exists()
            need(gone or again.exists(), "a redispatch was eaten", message)


def in_flight_of(token: int) -> set[int]:
    """What the lease says that it may have sent; nothing if it is gone."""
    found = Lease.objects.filter(token=token).values_list("in_flight", flat=True).first()
    return set(decode(found)) if found else set()
