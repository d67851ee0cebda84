"""The processes of a random run, and what is done to them."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.mischief import free_loopback_deliveries, freeze
from tests.processes import Process

POINTS = {
    "outbox_dispatch": ("read", "marked", "published", "confirmed", "settled"),
    "outbox_consume": ("receipt", "handled", "committed", "acked"),
    "publish_at_random": (),
}


@dataclass(slots=True)
class Member:
    """A place in the crew: its process is replaced whenever it is gone."""

    command: str
    arguments: tuple[str, ...]
    env: dict[str, str]
    process: Process
    frozen_until: float = 0.0
    expected: tuple[int, ...] = (0, -signal.SIGKILL)


class Crew:
    """Two publishers (one of them in direct mode), two or three dispatchers, one or two consumers."""

    def __init__(
        self, spawn: Callable[..., Process], rng: random.Random, lease: float, *, embedded: bool
    ) -> None:
        self._rng, self._lease = rng, lease
        self.spawned: list[Process] = []

        def start(command: str, *arguments: str, env: dict[str, str] | None = None) -> Process:
            self.spawned.append(spawn(command, *arguments, env=env))
            return self.spawned[-1]

        self._spawn = start
        self._numbers = itertools.count(1)
        self.counts: Counter[str] = Counter()
        pause = "0.06" if embedded else "0.03"
        self.members = [
            self._enlist("publish_at_random", "--name", "a", "--pause", pause),
            self._enlist("publish_at_random", "--name", "b", "--pause", pause, OUTBOX_MODE="direct"),
            *(self._enlist("outbox_dispatch", "--name", f"relay-{n}") for n in range(2 if embedded else 3)),
            *(self._enlist("outbox_consume", "--consumer", "payments") for _ in range(1 if embedded else 2)),
        ]

    def misbehave(self) -> None:
        """Do one thing to one process, wait a little, and see that every place is taken."""
        member = self._rng.choice(self.members)
        act = self._rng.choice([self._kill, self._kill, self._freeze, self._terminate])
        if not member.frozen_until and member.process.running:
            act(member)
        time.sleep(self._rng.uniform(0.1, 1))
        self._thaw()
        for one in self.members:
            self._replace(one)

    def replace_all(self) -> None:
        """End everyone, the publishers for good, and put one sound dispatcher and one sound consumer in their place."""
        for member in self.members:
            member.process.cont()
            member.process.terminate()
        for member in self.members:
            code = member.process.wait(15)
            assert code in (0, 1, -signal.SIGKILL, -signal.SIGTERM), (code, member.process.output[-3000:])
        free_loopback_deliveries()
        self._spawn("outbox_dispatch", "--name", "last")
        self._spawn("outbox_consume", "--consumer", "payments")

    def said(self, *words: str) -> list[str]:
        """What any of them has written that holds one of these words."""
        lines = (line for process in self.spawned for line in process.output.splitlines())
        return [line for line in lines if any(word in line for word in words)]

    def _enlist(self, command: str, *arguments: str, **env: str) -> Member:
        return Member(command, arguments, env, self._start(command, arguments, env, sound=True))

    def _start(self, command: str, arguments: tuple[str, ...], env: dict[str, str], sound: bool) -> Process:
        number = next(self._numbers)
        if command == "publish_at_random":
            arguments += ("--seed", str(self._rng.randrange(1_000_000)), "--first", str(number * 1_000_000))
        points = POINTS[command]
        if points and not sound and self._rng.random() < 0.6:
            point = f"{self._rng.choice(points)}:{self._rng.randint(1, 30)}"
            env = {**env, "OUTBOX_ALLOW_CRASH": "1", "OUTBOX_CRASH_AT": point}
        return self._spawn(command, *arguments, env=env)

    def _replace(self, member: Member) -> None:
        code = member.process.returncode
        if code is None:
            return
        assert code in (0, -signal.SIGKILL, -signal.SIGTERM), (
            f"{member.process} ended with {code}:\n{member.process.output[-3000:]}"
        )
        self.counts[f"{member.command} ended {code}"] += 1
        if member.command == "outbox_consume":
            free_loopback_deliveries()
        member.process = self._start(member.command, member.arguments, member.env, sound=False)

    def _kill(self, member: Member) -> None:
        self.counts["SIGKILL"] += 1
        member.process.kill()

    def _terminate(self, member: Member) -> None:
        self.counts["SIGTERM"] += 1
        member.process.terminate()

    def _freeze(self, member: Member) -> None:
        self.counts["SIGSTOP"] += 1
        freeze(member.process)
        member.frozen_until = time.monotonic() + self._lease * self._rng.uniform(0.5, 2)

    def _thaw(self) -> None:
        for member in self.members:
            if member.frozen_until and time.monotonic() >= member.frozen_until:
                member.frozen_until = 0.0
                member.process.cont()
