"""Signals become a Stop, once, and a process that does not end is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from outbox_core.shutdown import Stop, stop_on_signals


def test_a_stop_stays_set_and_calls_back_once_even_late() -> None:
    stop, calls = Stop(), []
    stop.on_stop(lambda: calls.append("early"))
    assert not stop.is_set()
    assert not stop.wait(0)
    assert stop.left(10) == 10
    stop.set()
    stop.set()
    assert stop.is_set()
    assert stop.wait(0)
    stop.on_stop(lambda: calls.append("late"))
    assert calls == ["early", "late"]
    assert 9 < stop.left(10) <= 10
    assert stop.left(0) == 0


def test_a_callback_that_fails_keeps_no_other_from_being_called() -> None:
    stop, calls = Stop(), []

    def fail() -> None:
        raise LookupError

    stop.on_stop(fail)
    stop.on_stop(lambda: calls.append(1))
    stop.set()
    assert calls == [1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_stop_and_the_former_handlers_come_back(number: int) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        os.kill(os.getpid(), number)
        assert stop.wait(5)
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before
    assert not [t for t in threading.enumerate() if t.name == "signals"]


def test_a_second_interrupt_is_for_the_impatient() -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(5)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)


def test_a_process_that_does_not_end_is_ended_after_its_grace() -> None:
    code = (
        "import signal, time\nfrom outbox_core.shutdown import stop_on_signals\n"
        "with stop_on_signals(grace=1.5):\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        process.terminate()
        assert process.wait(10) == 1
        assert time.monotonic() - began < 5
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
