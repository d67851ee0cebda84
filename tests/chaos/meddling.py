"""People who act at random while a run goes on, and a binding that comes and goes."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from types import TracebackType
from typing import Any

from django.db import connection

from outbox_core.errors import OutboxError, StateChanged
from outbox_core.models import Dispatch, Parked, Pending
from outbox_core.operations.verbs import act
from outbox_core.transports import transport
from outbox_core.transports.base import Queue
from tests.integration.situations import ANA

FLAKY = "flaky.#"


class Meddler:
    """Within it, threads do random verbs to random messages; at its end the flaky binding is there for good."""

    def __init__(self, witness: Queue, rng: random.Random, threads: int, pause: float = 0.05) -> None:
        self._witness, self._pause = witness, pause
        self._stop = threading.Event()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.done: dict[int, list[str]] = defaultdict(list)  # message -> the verbs that were accepted
        rngs = [random.Random(rng.random()) for _ in range(threads + 1)]
        self._threads = [threading.Thread(target=self._run, args=(self._act, r)) for r in rngs[1:]]
        self._threads.append(threading.Thread(target=self._run, args=(self._rebind, rngs[0])))

    def __enter__(self) -> Meddler:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a verb hangs"
        transport().apply_topology([self._witness])

    def _run(self, deed: Any, rng: random.Random) -> None:
        try:
            while not self._stop.wait(rng.expovariate(1 / self._pause)):
                try:
                    deed(rng)
                except Exception as error:
                    self.errors.append(repr(error))
        finally:
            connection.close()

    def _act(self, rng: random.Random) -> None:
        message = self._choose(rng)
        if message is None:
            return
        verb = rng.choice(["retry", "retry", "redispatch", "mark", "discard"])
        try:
            acted = act(verb, message, actor=ANA, reason="at random")
        except StateChanged as refusal:
            self.counts[f"{verb} refused"] += 1
            self.counts["in flight"] += "it is being sent by" in str(refusal)
        except OutboxError:
            self.counts[f"{verb} could not get its locks"] += 1
        else:
            self.counts[f"{verb} {acted.outcome}"] += 1
            if acted.outcome == "done":
                self.done[message].append(verb)

    @staticmethod
    def _choose(rng: random.Random) -> int | None:
        """A message that is queued, parked or was sent just now."""
        model = rng.choice([Pending, Pending, Parked, Parked, Dispatch])
        newest = list(model._default_manager.order_by("-pk").values_list("message", flat=True)[:100])
        return rng.choice(newest) if newest else None

    def _rebind(self, rng: random.Random) -> None:
        if rng.random() < 0.1:
            transport().apply_topology([self._witness])
        elif rng.random() < 0.1:
            kept = Queue(self._witness.name, tuple(p for p in self._witness.patterns if p != FLAKY))
            transport().apply_topology([kept], [(self._witness.name, FLAKY)])
