"""The demo's supervisor, over small real processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import Process, alive, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent

PROGRAM = """
import sys
from dashboard.demo import supervisor
from dashboard.demo.supervisor import Role, Supervisor
supervisor.BACKOFF_FIRST = 0.2
def python(code):
    return [sys.executable, "-c", "import os, signal, sys, time\\n" + code]
SLEEP = "print('pid', os.getpid(), flush=True); time.sleep(60)"
roles = [{roles}]
Supervisor(roles, lambda role, line: print(f"{{role}} | {{line}}", flush=True), grace={grace}).run()
print("ended", flush=True)
"""


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Run a supervisor over roles given as Python source."""
    started: list[Process] = []

    def start(*roles: str, grace: float = 5) -> Process:
        source = PROGRAM.format(roles=", ".join(roles), grace=grace)
        process = Process([sys.executable, "-c", source], env=os.environ, log=tmp_path / "log", cwd=ROOT)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def pids(process: Process) -> list[int]:
    """The process ids that the roles have printed."""
    return [int(line.split()[-1]) for line in process.output.splitlines() if " | pid " in line]


def test_every_line_carries_its_role(supervise):
    process = supervise(
        "Role('one', python('print(1); print(2)'), once=True)",
        "Role('two', python('sys.stderr.write(\"no newline at the end\")'), once=True)",
    )
    wait_until(lambda: "no newline" in process.output and "one | 2" in process.output)
    assert "one | 1\none | 2\n" in process.output
    assert "two | no newline at the end\n" in process.output


def test_sigterm_ends_every_process_and_the_exit_code_is_0(supervise):
    process = supervise("Role('a', python(SLEEP))", "Role('b', python(SLEEP))")
    children = wait_until(lambda: len(pids(process)) == 2 and pids(process))
    assert process.end() == 0
    assert process.output.endswith("ended\n")
    assert not any(map(alive, children))


def test_ctrl_c_reaches_the_supervisor_alone_which_then_ends_the_others(supervise):
    process = supervise(
        "Role('a', python('signal.signal(signal.SIGINT, lambda *a: print(\"interrupted\", flush=True));' + SLEEP))"
    )
    wait_until(lambda: pids(process))
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    assert process.wait() == 0
    assert "interrupted" not in process.output


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(supervise):
    process = supervise(
        "Role('deaf', python('signal.signal(signal.SIGTERM, signal.SIG_IGN);' + SLEEP))", grace=0.5
    )
    (child,) = wait_until(lambda: pids(process))
    assert process.end() == 0
    assert "deaf did not end within 0.5 s: killed" in process.output
    assert not alive(child)


def test_a_process_that_dies_is_started_again_after_a_growing_pause(supervise):
    process = supervise("Role('frail', python('print(\"pid\", os.getpid()); sys.exit(3)'), backoff=0.1)")
    wait_until(lambda: len(pids(process)) >= 3)
    lines = [line for line in process.output.splitlines() if "frail ended" in line]
    assert lines[:2] == [
        "demo | frail ended with exit code 3; starting it again in 0.1 s",
        "demo | frail ended with exit code 3; starting it again in 0.2 s",
    ]


def test_a_killed_process_is_named_with_its_signal(supervise):
    process = supervise("Role('a', python(SLEEP), backoff=0.1)")
    (child,) = wait_until(lambda: pids(process))
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: len(pids(process)) == 2)
    assert "demo | a ended with signal SIGKILL; starting it again in 0.1 s" in process.output


def test_a_role_waits_for_the_one_that_it_names_whatever_its_exit_code(supervise):
    process = supervise(
        "Role('later', python('print(\"started\")'), once=True, after='first')",
        "Role('first', python('time.sleep(0.3); print(\"done\"); sys.exit(1)'), once=True)",
    )
    wait_until(lambda: "later | started" in process.output)
    assert process.output.index("first | done") < process.output.index("later | started")
    assert "demo | first ended with exit code 1; going on without it" in process.output


def test_a_role_waits_no_longer_than_its_patience(supervise):
    process = supervise(
        "Role('later', python('print(\"started\")'), once=True, after='first', patience=0.3)",
        "Role('first', python(SLEEP), once=True)",
    )
    wait_until(lambda: "later | started" in process.output)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal exists on Linux only")
def test_no_process_outlives_a_killed_supervisor(supervise):
    process = supervise("Role('a', python(SLEEP))", "Role('b', python(SLEEP))")
    children = wait_until(lambda: len(pids(process)) == 2 and pids(process))
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, children)))
