"""Who is owed which Result, and until when something may be written: what the two threads of a publisher share.

`gate` is held while a chunk is handed to the connection, so after `fence()` returned nothing of the old lease is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from outbox_core.clock import lease_clock
from outbox_core.transports.amqp_judge import Verdict
from outbox_core.transports.base import Outcome, Result, Send

FACTS = (Outcome.CONFIRMED, Outcome.RETURNED)
TWICE = "sent again after the broker closed a channel: a first copy may be there too"


class Lane:
    """Messages of which the next goes out on the confirm of the one before. `epoch` counts the fences before it;
    `twice`: its head was sent for the second time."""

    __slots__ = ("at", "epoch", "sends", "twice")

    def __init__(self, sends: Sequence[Send], epoch: int) -> None:
        self.sends, self.epoch, self.at, self.twice = sends, epoch, 0, False

    @property
    def head(self) -> Send:
        return self.sends[self.at]


class Ledger:
    """The books of one publisher."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.deadline = 0.0  # of lease_clock()
        self.epoch = 0  # how many fences there were
        self.owed = 0  # submitted since the last fence, and without a Result
        self._results: deque[tuple[int, Result]] = deque()
        self._signal: SimpleQueue[None] = SimpleQueue()  # its put() may run in a signal handler
        self._news = False

    # The caller's thread.

    def open(self, lanes: Sequence[Sequence[Send]], deadline: float) -> list[Lane]:
        """Enter what is submitted."""
        with self.gate:
            self.deadline = deadline
            new = [Lane(sends, self.epoch) for sends in lanes if sends]
            self.owed += sum(len(lane.sends) for lane in new)
        return new

    def extend(self, deadline: float) -> bool:
        """True if that is sooner than before."""
        with self.gate:
            sooner, self.deadline = deadline < self.deadline, deadline
        return sooner

    def fence(self) -> None:
        with self.gate:
            self.epoch += 1
            self.owed = 0

    def take(self) -> list[Result]:
        """The results so far. Of those from before a fence only the facts count, and they are stale."""
        with self.gate:
            taken, epoch = list(self._results), self.epoch
            self._results.clear()
        return [
            result if of == epoch else replace(result, stale=True)
            for of, result in taken
            if of == epoch or result.outcome in FACTS
        ]

    def wait(self, timeout: float) -> bool:
        """Until there is a result or news. One token is as good as many, and only this thread takes them."""
        try:
            if not self._results and not self._news:
                self._signal.get(timeout=max(0.0, timeout))
            while True:
                self._signal.get_nowait()
        except Empty:
            pass
        news, self._news = self._news, False
        return bool(self._results) or news

    def wake(self) -> None:
        self._signal.put(None)

    # The link's thread.

    def may_write(self, epoch: int) -> bool:
        """Whether messages of that epoch may be handed over now; to be asked with the gate held."""
        return epoch == self.epoch and lease_clock() < self.deadline

    @property
    def expired(self) -> bool:
        return lease_clock() >= self.deadline

    def tell(self) -> None:
        """Something changed that a waiting caller wants to know."""
        self._news = True
        self._notify()

    def confirm(self, lane: Lane) -> bool:
        """The head of a lane is with the broker for good. True if there is a next one to send."""
        detail = TWICE if lane.twice else ""
        self._answer(lane.epoch, Result(lane.head, Outcome.CONFIRMED, detail=detail, twice=lane.twice))
        lane.at, lane.twice = lane.at + 1, False
        return lane.at < len(lane.sends) and lane.epoch == self.epoch

    def stop(self, lane: Lane, verdict: Verdict) -> None:
        """The head of a lane was not taken: nothing behind it goes out."""
        outcome, error, detail = verdict
        head, rest = lane.head, lane.sends[lane.at + 1 :]
        self._answer(lane.epoch, Result(head, outcome, error, detail, twice=lane.twice))
        behind = f"Behind message {head.message_id}: {detail}"[:500]
        for send in rest:
            self._answer(lane.epoch, Result(send, Outcome.UNSENT, detail=behind))

    def unsent(self, lane: Lane, detail: str) -> None:
        """Nothing of a lane, from its head on, was written."""
        self.stop(lane, (Outcome.UNSENT, "", detail))

    def _answer(self, epoch: int, result: Result) -> None:
        with self.gate:
            if epoch == self.epoch:
                self.owed -= 1
            elif result.outcome not in FACTS:
                return
            self._results.append((epoch, result))
        self._notify()

    def _notify(self) -> None:
        if self._signal.empty():
            self._signal.put(None)
