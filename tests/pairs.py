"""`python -m tests.pairs [pytest arguments]`: the tests on both pairs side by side, or on the one that PAIR names.

The real pair takes longer, so its browser tests run after the embedded pair's, on the other core's time. The first
session's output is shown as it comes, that of the others after it. Exit code 0 only if all passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
PASSED, NO_TESTS = 0, 5  # exit codes of pytest
BROWSER = "tests/browser"


@dataclass(slots=True)
class Session:
    """One run of pytest on a pair. `output`: where what it writes is kept; None to let it through."""

    name: str
    pair: str
    arguments: list[str]
    output: IO[bytes] | None = None
    process: subprocess.Popen[bytes] | None = None
    code: int | None = None

    def run(self) -> None:
        """Start it and wait for its end."""
        # Or the sessions overwrite each other's.
        cache = ["-o", f"cache_dir=.pytest_cache/{self.name.replace(' ', '-')}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *cache, *self.arguments],
            env={**os.environ, "PAIR": self.pair, "PYTHONUNBUFFERED": "1"},
            cwd=ROOT,
            stdout=self.output,
            stderr=self.output and subprocess.STDOUT,
        )
        self.code = self.process.wait()

    @property
    def verdict(self) -> str:
        if self.code is None:
            return "not run"
        return {PASSED: "passed", NO_TESTS: "no tests"}.get(self.code, f"failed (exit code {self.code})")


def main(arguments: list[str]) -> int:
    if named := os.environ.get("PAIR"):
        only = Session(named, named, arguments)
        only.run()
        return only.code or 0
    with tempfile.TemporaryFile() as second, tempfile.TemporaryFile() as third:
        embedded = Session("embedded", "embedded", arguments)
        real = Session("real", "real", arguments, second)
        lanes = [[embedded], [real]]
        if not arguments:
            real.arguments = [f"--ignore={BROWSER}"]
            lanes[0].append(Session("real browser", "real", [BROWSER], third))
        _run(lanes)
        sessions = [session for lane in lanes for session in lane]
        for session in sessions:
            if session.output is not None:
                print(f"\n--- {session.name} follows ---\n", flush=True)
                session.output.seek(0)
                sys.stdout.buffer.write(session.output.read())
                sys.stdout.flush()
    print("\n" + ", ".join(f"{s.name}: {s.verdict}" for s in sessions), flush=True)
    codes = [1 if s.code is None else s.code for s in sessions]
    # With arguments, a pair may be left with no test of its own.
    bad = [code for code in codes if code not in ((PASSED, NO_TESTS) if arguments else (PASSED,))]
    return bad[0] if bad else (PASSED if PASSED in codes else NO_TESTS)


def _run(lanes: list[list[Session]]) -> None:
    """The lanes beside each other, the sessions of a lane one after the other. A SIGTERM goes to those that run, and
    no other begins."""
    stopped = threading.Event()

    def follow(lane: list[Session]) -> None:
        for session in lane:
            if not stopped.is_set():
                session.run()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        stopped.set()
        for session in (s for lane in lanes for s in lane):
            if session.process is not None:
                session.process.send_signal(signum)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(
        signal.SIGINT, lambda signum, frame: stopped.set()
    )  # a terminal sends Ctrl-C to them as well
    threads = [threading.Thread(target=follow, args=[lane]) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
