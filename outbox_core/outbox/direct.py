"""Direct mode: the producer's own process sends right after its commit; the dispatcher takes what is left.

Only messages without a key go this way: of a key, a dispatcher alone knows the order. The row of such a message is
the producer's for DIRECT_GRACE seconds. In this time no dispatcher reads it and no verb touches it, so nothing is
handed to the connection once the grace, less a margin, is over by the producer's own clock. It needs no lease: what
is confirmed is a fact, and anything else gives the row to the dispatcher at once.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import DatabaseError, InterfaceError, connections

from outbox_core import crash, tallies, wakeup
from outbox_core.clock import lease_clock
from outbox_core.conf import settings
from outbox_core.heartbeat import worker_name
from outbox_core.models import Lease, Message, Pending
from outbox_core.outbox import queue
from outbox_core.outbox.answers import Answer
from outbox_core.outbox.late import count_open_sends
from outbox_core.outbox.leases import decode
from outbox_core.outbox.load import unsent, write_lanes
from outbox_core.outbox.queue import Row
from outbox_core.outbox.settle import Settler
from outbox_core.sql import Dialect, exclusive
from outbox_core.transports import transport
from outbox_core.transports.base import Publisher

log = logging.getLogger("outbox.direct")

MARGIN = 1.0  # seconds before the end of the grace after which nothing is written any more
ROOM = 10_000  # messages that wait in a process, at most; the dispatcher gets what finds no room
FAREWELL = 2.0  # seconds that a process waits at its end for confirms
GATHER = 0.002  # seconds to let confirms gather before they are settled together


def offer(using: str, messages: Sequence[Message], started: float) -> None:
    """Hand over messages whose transaction has committed, from any thread; returns at once and raises nothing.

    `started`: `lease_clock()` from before their rows were inserted, as which their grace begins.
    """
    deadline = started + settings.DIRECT_GRACE - min(MARGIN, settings.DIRECT_GRACE / 2)
    with _guard:
        sender = _senders.get(using)
        if sender is None:
            sender = _senders[using] = Sender(using)
            sender.start()
    sender.offer([Ready(_row(message), message, deadline) for message in messages])


def close(timeout: float = FAREWELL) -> None:
    """End the threads of this process; waits for confirms, at most `timeout` seconds each."""
    with _guard:
        senders = list(_senders.values())
        _senders.clear()
    for sender in senders:
        sender.close(timeout)


@dataclass(frozen=True, slots=True)
class Ready:
    """A committed message that may be sent until `deadline` (`lease_clock()`)."""

    row: Row
    message: Message
    deadline: float


class Sender:
    """One thread that publishes and settles for one alias. Its rows are those that this process inserted."""

    def __init__(self, using: str) -> None:
        self.using, self.name = using, worker_name()
        self.publisher: Publisher = transport(using).publisher()
        self._waiting: deque[Ready] = deque()
        self._deadlines: dict[int, float] = {}  # of what the publisher has, by message
        self._answers: list[Answer] = []  # not settled yet
        self._rng = random.Random()
        self._announcer = wakeup.Announcer(using)
        self._closing = threading.Event()
        self._farewell = FAREWELL
        self._thread = threading.Thread(target=self._run, name=f"outbox-direct-{using}", daemon=True)

    def start(self) -> None:
        self.publisher.open()
        self._thread.start()

    def offer(self, ready: Sequence[Ready]) -> None:
        room = max(0, ROOM - len(self._waiting))
        self._waiting.extend(ready[:room])
        self._answers.extend(unsent(one.row) for one in ready[room:])
        self.publisher.wake()

    def close(self, timeout: float) -> None:
        self._farewell = timeout
        self._closing.set()
        self.publisher.wake()
        self._thread.join(timeout + 1)
        self.publisher.close(1)

    def _run(self) -> None:
        end = float("inf")
        while time.monotonic() < end and (self._busy or not self._closing.is_set()):
            self._safely(self._step)
            if self._closing.is_set():
                end = min(end, time.monotonic() + self._farewell)
        self._answers += [unsent(one.row) for one in self._waiting]
        if self._answers:
            self._safely(self._settle)
        connections[self.using].close()

    def _safely(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (DatabaseError, InterfaceError) as error:
            log.warning("Could not settle: %s", error, extra={"action": "settle_failed"})
            connections[self.using].close()
            time.sleep(0.2)
        except Exception:  # the dispatcher sends what this thread does not
            log.exception("Direct sending met an error", extra={"action": "direct_failed"})
            time.sleep(0.2)

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self._deadlines or self._answers)

    @property
    def _room(self) -> bool:
        return len(self._deadlines) < settings.WINDOW

    def _step(self) -> None:
        self.publisher.wait(self._patience())
        self._send()
        if self.publisher.outstanding:
            time.sleep(GATHER)
        self._collect()
        if self._answers:
            self._settle()
        self._announcer.flush()

    def _patience(self) -> float:
        """Seconds to wait for answers, for more to send, or for a broker that is being connected."""
        if self._answers:  # rows that someone else holds a lock on
            return 0.05
        if self._waiting and self._room and self.publisher.state.usable:
            return 0.0
        due = self._announcer.due()
        longest = 0.1 if self._waiting or self._closing.is_set() else 5.0
        return longest if due is None else min(longest, max(0.0, due - time.monotonic()))

    def _send(self) -> None:
        """Give the publisher what its window has room for; the dispatcher, what may not be sent here any more."""
        state, now = self.publisher.state, lease_clock()
        if state.name in ("down", "blocked"):
            while self._waiting:
                self._answers.append(unsent(self._waiting.popleft().row))
            return
        batch: list[Ready] = []
        while self._waiting and self._room:
            if self._waiting[0].deadline <= now:
                self._answers.append(unsent(self._waiting.popleft().row))
            elif state.usable:
                batch.append(one := self._waiting.popleft())
                self._deadlines[one.row.id] = one.deadline
            else:
                break
        if batch:
            lanes, broken = write_lanes([[r.row] for r in batch], {r.message.pk: r.message for r in batch})
            self._note(broken)
            # One deadline holds for all that is queued: the earliest.
            self.publisher.submit(lanes, min(self._deadlines.values(), default=0.0))

    def _collect(self) -> None:
        answers = [Answer.of(result) for result in self.publisher.take()]
        if any(a.sent for a in answers):
            crash.point("confirmed")
        self._note(answers)

    def _note(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._deadlines.pop(answer.row.id, None)
        self._answers += answers

    def _settle(self) -> None:
        answers, began = list(self._answers), time.monotonic()
        left = settle(self.using, self.name, answers, self._rng)
        # Other threads may have added to the end meanwhile.
        self._answers[: len(answers)] = left
        if any(a.sent for a in answers):
            crash.point("settled")
        self._announcer.note()
        Dialect(self.using).rest(began)


def settle(using: str, worker: str, answers: Sequence[Answer], rng: random.Random) -> list[Answer]:
    """Commit what came of direct sends. Returns the confirms whose row someone else has locked.

    A confirm is recorded whoever has the row by now. Whatever else it was counts only for a row that is still the
    producer's own, which from then on is the dispatcher's.
    """
    with exclusive(using, hot=True) as db:
        _count_claimed(using, answers)  # first, since only this waits for locks
        failed = [a.row.id for a in answers if not a.sent]
        mine = queue.give_direct(db, failed) if failed else set()
        settler = Settler(db, worker, rng)
        left = settler.settle([a for a in answers if a.sent or a.row.id in mine])
        tallies.add(using, worker, settler.counts, db.now())
        if mine:
            wakeup.announce(using)
    return left


def _count_claimed(using: str, answers: Sequence[Answer]) -> None:
    """A dispatcher that has claimed a message since its grace was over is sending it too."""
    sent = {a.row.id for a in answers if a.sent}
    claimed = Pending.objects.using(using).filter(message__in=sent, direct=False)
    if ids := set(claimed.values_list("message", flat=True)):
        for lease in Lease.objects.using(using):
            count_open_sends(using, lease.name, ids.intersection(decode(lease.in_flight)), answers)


def _row(message: Message) -> Row:
    return Row(
        id=message.pk, partition=queue.partition_of("", message.message_id), key="", position=message.pk,
        first_position=None, attempts=0, failures=0, scheduled=False, direct=True, late=False, cause="first",
        operation=None, type=message.type, destination=message.destination, available_at=None,
    )  # fmt: skip


_guard = threading.Lock()
_senders: dict[str, Sender] = {}


def _forget_after_fork() -> None:
    """A child has neither the threads nor the connection of its parent."""
    global _guard
    _guard = threading.Lock()
    _senders.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(close)
