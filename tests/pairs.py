"""`python -m tests.pairs [pytest arguments]`: the tests on both pairs side by side, or on the one that PAIR names.

The first pair's output is shown as it comes, the other's after it. Exit code 0 only if both passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
PAIRS = ("embedded", "real")
PASSED, NO_TESTS = 0, 5  # exit codes of pytest


def main(arguments: list[str]) -> int:
    named = os.environ.get("PAIR")
    if named:
        return _start(named, arguments, None).wait()
    with tempfile.TemporaryFile() as later:
        first, second = _start(PAIRS[0], arguments, None), _start(PAIRS[1], arguments, later)
        _pass_on_signals(first, second)
        codes = {PAIRS[0]: first.wait()}
        print(f"\n--- PAIR={PAIRS[0]} ended; PAIR={PAIRS[1]} follows ---\n", flush=True)
        codes[PAIRS[1]] = second.wait()
        later.seek(0)
        sys.stdout.buffer.write(later.read())
        sys.stdout.flush()
    print("\n" + ", ".join(f"PAIR={pair}: {_verdict(code)}" for pair, code in codes.items()), flush=True)
    # With arguments, a pair may be left with no test of its own.
    bad = [code for code in codes.values() if code not in ((PASSED, NO_TESTS) if arguments else (PASSED,))]
    return bad[0] if bad else (PASSED if PASSED in codes.values() else NO_TESTS)


def _start(pair: str, arguments: list[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    cache = ["-o", f"cache_dir=.pytest_cache/{pair}"]  # or the two sessions overwrite each other's
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *cache, *arguments],
        env={**os.environ, "PAIR": pair, "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdout=output,
        stderr=output and subprocess.STDOUT,
    )


def _pass_on_signals(*running: subprocess.Popen[bytes]) -> None:
    def pass_on(signum: int, frame: FrameType | None) -> None:
        for process in running:
            process.send_signal(signum)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to them as well


def _verdict(code: int) -> str:
    return {PASSED: "passed", NO_TESTS: "no tests"}.get(code, f"failed (exit code {code})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
