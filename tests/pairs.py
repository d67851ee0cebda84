"""`python -m tests.pairs [pytest arguments]`: the tests on both pairs side by side, or on the one that PAIR names.

The real pair takes longer and waits for its servers half of the time, so it runs in two parts beside each other. The
first session's output is shown as it comes, that of the others after it. Exit code 0 only if all passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
PASSED, NO_TESTS = 0, 5  # exit codes of pytest
LONG = ("tests/chaos", "tests/browser")  # what takes as long as all the rest


@dataclass(slots=True)
class Session:
    """One run of pytest on a pair. `output`: where what it writes is kept; None to let it through."""

    name: str
    pair: str
    arguments: list[str]
    output: IO[bytes] | None = None
    process: subprocess.Popen[bytes] | None = None
    code: int | None = None

    def start(self) -> None:
        # Or the sessions overwrite each other's.
        cache = ["-o", f"cache_dir=.pytest_cache/{self.name.replace(' ', '-')}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *cache, *self.arguments],
            env={**os.environ, "PAIR": self.pair, "PYTHONUNBUFFERED": "1"},
            cwd=ROOT,
            stdout=self.output,
            stderr=self.output and subprocess.STDOUT,
        )

    def wait(self) -> None:
        if self.process is not None:
            self.code = self.process.wait()

    @property
    def verdict(self) -> str:
        if self.code is None:
            return "not run"
        return {PASSED: "passed", NO_TESTS: "no tests"}.get(self.code, f"failed (exit code {self.code})")


def main(arguments: list[str]) -> int:
    if named := os.environ.get("PAIR"):
        only = Session(named, named, arguments)
        only.start()
        only.wait()
        return only.code or 0
    with ExitStack() as files:
        sessions = [Session("embedded", "embedded", arguments)]
        real = {"real": arguments}
        if not arguments:
            real = {
                "real": [f"--ignore={folder}" for folder in LONG],
                "real chaos and browser": list(LONG),
            }
        for name, chosen in real.items():
            output = files.enter_context(tempfile.TemporaryFile())
            sessions.append(Session(name, "real", chosen, output))
        _run(sessions)
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


def _run(sessions: list[Session]) -> None:
    """All beside each other. A SIGTERM goes to each of them."""

    def pass_on(signum: int, frame: FrameType | None) -> None:
        for session in sessions:
            if session.process is not None:
                session.process.send_signal(signum)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, lambda signum, frame: None)  # a terminal sends Ctrl-C to them as well
    for session in sessions:
        session.start()
    for session in sessions:
        session.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
