"""Who is owed which result, and until when something may be written."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from outbox_core.clock import lease_clock
from outbox_core.transports.amqp_ledger import Ledger
from outbox_core.transports.base import Outcome, Send

LATER = lease_clock() + 86_400
REFUSED = (Outcome.REFUSED, "AccessRefused", "no")


def sends(count: int) -> list[Send]:
    return [Send(tag=n, message_id=f"m{n}", exchange="e", routing_key="k", body=b"") for n in range(count)]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_nothing_may_be_written_before_a_deadline_is_given_past_it_or_after_a_fence(ledger: Ledger) -> None:
    assert not ledger.may_write(0)
    ledger.open([sends(1)], LATER)
    assert ledger.may_write(0)
    assert ledger.extend(lease_clock() - 0.001)
    assert not ledger.may_write(0)
    assert not ledger.extend(LATER)
    ledger.fence()
    assert not ledger.may_write(0)
    assert ledger.may_write(1)


def test_a_fence_waits_for_a_chunk_that_is_being_handed_over(ledger: Ledger) -> None:
    ledger.open([sends(1)], LATER)
    fenced = threading.Event()
    with ledger.gate:
        assert ledger.may_write(0)
        thread = threading.Thread(target=lambda: (ledger.fence(), fenced.set()))
        thread.start()
        assert not fenced.wait(0.2)
    assert fenced.wait(5)
    thread.join()


def test_a_stopped_lane_answers_for_all_that_is_left_of_it(ledger: Ledger) -> None:
    [lane] = ledger.open([sends(4)], LATER)
    assert ledger.owed == 4
    assert ledger.confirm(lane)
    ledger.stop(lane, REFUSED)
    assert [(r.send.tag, r.outcome) for r in ledger.take()] == [
        (0, Outcome.CONFIRMED), (1, Outcome.REFUSED), (2, Outcome.UNSENT), (3, Outcome.UNSENT),
    ]  # fmt: skip
    assert ledger.owed == 0
    assert ledger.take() == []


def test_what_was_sent_twice_says_so_and_the_next_of_its_lane_was_not(ledger: Ledger) -> None:
    [lane] = ledger.open([sends(2)], LATER)
    lane.twice = True
    assert ledger.confirm(lane)
    assert not ledger.confirm(lane)
    first, second = ledger.take()
    assert first.twice and "first copy" in first.detail
    assert not second.twice and not second.detail


def test_after_a_fence_only_facts_come_back_and_they_are_stale(ledger: Ledger) -> None:
    first, second, third = ledger.open([sends(2), sends(2), sends(2)], LATER)
    ledger.confirm(first)
    ledger.stop(second, REFUSED)
    ledger.fence()
    assert ledger.owed == 0
    assert not ledger.confirm(third)  # its next one is dropped
    ledger.unsent(first, "late")
    assert [(r.outcome, r.stale) for r in ledger.take()] == [(Outcome.CONFIRMED, True)] * 2
    assert ledger.owed == 0
    [again] = ledger.open([sends(1)], LATER)
    ledger.confirm(again)
    assert [r.stale for r in ledger.take()] == [False]


def test_an_empty_lane_is_nothing(ledger: Ledger) -> None:
    assert ledger.open([[], []], LATER) == []
    assert ledger.owed == 0


def test_a_wait_ends_with_a_result_a_change_or_a_wake_and_not_before(ledger: Ledger) -> None:
    assert not ledger.wait(0.01)
    ledger.tell()
    assert ledger.wait(60)
    assert not ledger.wait(0.01)
    ledger.wake()
    assert not ledger.wait(60)  # woken, but there is nothing
    [lane] = ledger.open([sends(1)], LATER)
    threading.Timer(0.1, lambda: ledger.confirm(lane)).start()
    assert ledger.wait(60)
    assert ledger.wait(60)  # until it is taken
    ledger.take()
    assert not ledger.wait(0.01)


def test_a_wake_from_a_signal_handler_ends_a_wait(ledger: Ledger) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: [ledger.wake() for _ in range(100)] and None)
    try:
        timer = threading.Timer(
            0.1, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        )
        timer.start()
        began = time.monotonic()
        ledger.wait(30)
        assert time.monotonic() - began < 10
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
