"""Processes that tests start: always ended with their test, and with pytest if it is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dashboard.demo.supervisor import die_with_parent


def wait_until(condition: Callable[[], Any], timeout: float = 10, every: float = 0.05, what: str = "") -> Any:
    """The first true value of `condition()`; an AssertionError after `timeout` seconds, with `what` in it."""
    deadline = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() >= deadline:
            what = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"after {timeout:g} s still not: {what} (last value {value!r})")
        time.sleep(every)


class Process:
    """A running command whose output goes to a file. It leads a process group, which every signal reaches."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], log: Path, **popen: Any) -> None:
        self.command, self.log = list(command), log
        parent = os.getpid()
        with log.open("wb") as output, warnings.catch_warnings():
            # Python 3.12+ warns of a fork in a process with threads; between fork and exec nothing here takes a lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._popen = subprocess.Popen(
                self.command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent, signal.SIGKILL),
                **popen,
            )
        self.pid = self._popen.pid

    @property
    def output(self) -> str:
        """Everything that it has written so far, standard output and error together."""
        return self.log.read_text(errors="replace")

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._popen.poll()

    @property
    def running(self) -> bool:
        return self.returncode is None

    def wait(self, timeout: float = 15) -> int:
        """Its exit code. An AssertionError with its output if it still runs after `timeout` seconds."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self} still runs after {timeout:g} s; its output:\n{self.output}"
            ) from None

    def send(self, signum: int) -> None:
        if self._popen.poll() is None:
            os.killpg(self.pid, signum)

    def terminate(self) -> None:
        self.send(signal.SIGTERM)

    def interrupt(self) -> None:
        self.send(signal.SIGINT)

    def stop(self) -> None:
        """Freeze it (SIGSTOP)."""
        self.send(signal.SIGSTOP)

    def cont(self) -> None:
        """Let it go on (SIGCONT)."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self._popen.wait(10)

    def end(self, timeout: float = 10) -> int:
        """SIGTERM, then wait: its exit code."""
        self.terminate()
        return self.wait(timeout)

    def __repr__(self) -> str:
        return f"process {self.pid} ({' '.join(self.command[-4:])})"


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def listening_socket() -> Iterator[socket.socket]:
    """A socket that already listens on a free port of 127.0.0.1, to be inherited by a server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def get_status(url: str) -> int | None:
    """The status of the answer to a GET, None without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return None


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> dict[int, str]:
    """The running processes that `pid` has started, with their command lines. Linux only."""
    found = {}
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            if command := Path(f"/proc/{child}/cmdline").read_bytes():
                found[child] = command.replace(b"\0", b" ").decode()
    return found


def child(pid: int, word: str) -> int | None:
    """The process id of the child whose command line contains `word`."""
    return next((child for child, command in children(pid).items() if word in command), None)
