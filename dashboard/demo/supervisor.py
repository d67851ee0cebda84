"""Runs the demo's processes: starts them, prefixes their output, restarts what dies, ends all together.

One thread and one loop over their pipes. Why this and not a library: docs/decisions/0001-own-supervisor.md.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

GRACE = 12.0  # seconds between TERM and KILL; each process drains within 10
BACKOFF_FIRST, BACKOFF_CAP = 1.0, 5.0  # seconds before a restart, doubled each time
HEALTHY_AFTER = 20.0  # seconds of life after which the back-off begins anew
TICK = 0.1

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int, signum: int = signal.SIGTERM) -> None:
    """Called between fork and exec: the kernel sends `signum` to this process when `parent` ends (Linux only)."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the line above
            os.kill(os.getpid(), signum)


@dataclass(slots=True)
class Role:
    """One process to keep running. `once`: it does something and ends, and is not started again.

    `after` names such a role that must have ended first, or `patience` seconds must have passed. `pass_fds` are
    descriptors that the process inherits.
    """

    name: str
    command: Sequence[str]
    once: bool = False
    after: str = ""
    patience: float = float("inf")
    pass_fds: Sequence[int] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    ended: bool = False
    started_at: float = 0.0
    start_at: float = 0.0
    backoff: float = BACKOFF_FIRST
    rest: bytes = b""

    @property
    def running(self) -> bool:
        return self.process is not None


class Supervisor:
    """`run()` returns when SIGTERM or SIGINT came and every process has ended.

    `say` gets each line of output with its role; `on_tick` is called about ten times a second.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        say: Callable[[str, str], None],
        on_tick: Callable[[], None] = lambda: None,
        grace: float = GRACE,
    ) -> None:
        self.roles, self.say, self.on_tick, self.grace = roles, say, on_tick, grace
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._began = 0.0

    def run(self) -> None:
        """Keep the roles running until a signal asks to stop; then end them."""
        self._began = time.monotonic()
        previous = {s: signal.signal(s, self._stop) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            while not self._stopping:
                self._start_due()
                self._read(TICK)
                self._reap()
                self.on_tick()
        finally:
            try:
                self._end()
            finally:
                for signum, handler in previous.items():
                    signal.signal(signum, handler)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _start_due(self) -> None:
        now = time.monotonic()
        ended = {"", *(role.name for role in self.roles if role.ended)}
        for role in self.roles:
            if self._stopping:
                return
            due = not role.running and now >= role.start_at and not (role.once and role.ended)
            if due and (role.after in ended or now - self._began >= role.patience):
                self._start(role, now)

    def _start(self, role: Role, now: float) -> None:
        # A process group of its own: Ctrl-C in a terminal reaches the supervisor alone, which then ends all in order.
        parent = os.getpid()
        role.process = subprocess.Popen(
            role.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **role.env},
            pass_fds=role.pass_fds,
            process_group=0,
            preexec_fn=lambda: die_with_parent(parent),
        )
        role.started_at, role.rest = now, b""
        assert role.process.stdout is not None
        os.set_blocking(role.process.stdout.fileno(), False)
        self._selector.register(role.process.stdout, selectors.EVENT_READ, role)

    def _read(self, timeout: float) -> None:
        if not self._selector.get_map():
            time.sleep(timeout)
            return
        for key, _ in self._selector.select(timeout):
            self._drain(key.data, key.fileobj)  # type: ignore[arg-type]

    def _drain(self, role: Role, pipe: IO[bytes]) -> None:
        try:
            data = os.read(pipe.fileno(), 65536)
        except BlockingIOError:
            return
        *lines, role.rest = (role.rest + data).split(b"\n")
        if not data:
            lines, role.rest = [role.rest] if role.rest else [], b""
            self._selector.unregister(pipe)
        for line in lines:
            self.say(role.name, line.decode(errors="replace").rstrip("\r"))

    def _reap(self) -> None:
        now = time.monotonic()
        for role in self.roles:
            if role.process is None or (code := role.process.poll()) is None:
                continue
            self._close(role)
            role.ended = True
            if role.once:
                if code != 0:
                    self.say("demo", f"{role.name} ended with {_reason(code)}; going on without it")
                continue
            if now - role.started_at >= HEALTHY_AFTER:
                role.backoff = BACKOFF_FIRST
            role.start_at = now + role.backoff
            self.say(
                "demo", f"{role.name} ended with {_reason(code)}; starting it again in {role.backoff:g} s"
            )
            role.backoff = min(BACKOFF_CAP, role.backoff * 2)

    def _close(self, role: Role) -> None:
        """Take the last output of an ended process and forget it."""
        pipe = role.process.stdout if role.process is not None else None
        assert pipe is not None
        while pipe in self._selector.get_map():
            before = role.rest
            self._drain(role, pipe)
            if role.rest == before and pipe in self._selector.get_map():  # a grandchild holds the pipe open
                self._selector.unregister(pipe)
        pipe.close()
        role.process = None

    def _end(self) -> None:
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        while any(role.running for role in self.roles):
            if time.monotonic() >= deadline:
                for role in self.roles:
                    if role.running:
                        self.say("demo", f"{role.name} did not end within {self.grace:g} s: killed")
                self._signal(signal.SIGKILL)
                deadline = float("inf")
            self._read(TICK)
            for role in self.roles:
                if role.process is not None and role.process.poll() is not None:
                    self._close(role)

    def _signal(self, signum: int) -> None:
        for role in self.roles:
            if role.process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(role.process.pid, signum)


def _reason(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
