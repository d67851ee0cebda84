"""Circuit breakers: what opens one, who may go while it is open, and what closes it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from outbox_core.outbox import circuits as module
from outbox_core.outbox.answers import NACKED, Answer
from outbox_core.outbox.circuits import ALIKE, Circuits
from outbox_core.transports.base import Outcome
from tests.unit.test_reading import row

ROAD = ("events", "t")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def circuits(clock: list[float]) -> Circuits:
    return Circuits(random.Random(1))


def answer(id: int, outcome: Outcome, error: str = "", **fields: Any) -> Answer:
    return Answer(row(id, **fields), outcome, datetime(2026, 5, 1, tzinfo=UTC), error, "why")


def returned(first: int, count: int, **fields: Any) -> list[Answer]:
    return [answer(first + n, Outcome.RETURNED, **fields) for n in range(count)]


def test_it_opens_when_many_in_a_row_failed_alike(circuits: Circuits) -> None:
    circuits.learn(returned(1, ALIKE - 1))
    assert not circuits.strands(row(100))
    circuits.learn(returned(50, 1))
    assert circuits.strands(row(100))
    assert "one is tried at a time" in circuits.problems["events · t"]


def test_a_confirm_in_between_starts_the_count_again(circuits: Circuits) -> None:
    circuits.learn([*returned(1, ALIKE - 1), answer(40, Outcome.CONFIRMED), *returned(50, ALIKE - 1)])
    assert not circuits.strands(row(100))


def test_repeats_of_one_message_and_faults_of_its_own_do_not_count(circuits: Circuits) -> None:
    circuits.learn(returned(1, ALIKE * 2, failures=1, attempts=1))
    circuits.learn([answer(n, Outcome.INVALID) for n in range(ALIKE * 2)])
    circuits.learn([answer(n, Outcome.UNKNOWN) for n in range(ALIKE * 2)])
    assert not circuits.strands(row(100))


def test_a_full_queue_opens_it_at_once(circuits: Circuits) -> None:
    circuits.learn([answer(1, Outcome.ROAD, NACKED)])
    assert circuits.strands(row(2))
    assert not circuits.strands(row(3, type="other"))
    assert not circuits.strands(row(4, destination="elsewhere"))


def test_one_that_has_failed_itself_goes_at_its_own_time(circuits: Circuits) -> None:
    circuits.learn(returned(1, ALIKE))
    assert not circuits.strands(row(1, failures=1, attempts=1))


def test_one_probe_goes_at_a_time_and_its_failure_asks_for_another_later(
    circuits: Circuits, clock: list[float]
) -> None:
    circuits.learn(returned(1, ALIKE))
    assert circuits.strands(row(100))
    clock[0] += 60
    assert not circuits.strands(row(101)), "the first to come after the back-off is the probe"
    assert circuits.strands(row(102))
    assert circuits.wanting(flying={101}) == []
    circuits.learn(returned(101, 1))
    assert circuits.strands(row(103))
    clock[0] += 60
    assert circuits.wanting(flying=()) == [ROAD]
    circuits.probe_with(ROAD, 100)
    assert not circuits.strands(row(100))


def test_a_probe_that_vanished_is_replaced(circuits: Circuits, clock: list[float]) -> None:
    circuits.learn(returned(1, ALIKE))
    assert circuits.strands(row(100))
    clock[0] += 60
    circuits.probe_with(ROAD, 100)
    assert circuits.wanting(flying={100}) == []
    assert circuits.wanting(flying=()) == [ROAD]


def test_the_first_confirm_closes_it_and_what_is_stranded_flows(circuits: Circuits) -> None:
    circuits.learn(returned(1, ALIKE))
    assert circuits.strands(row(100))
    circuits.learn([answer(5, Outcome.CONFIRMED, failures=3, attempts=3)])
    assert not circuits.strands(row(101))
    assert circuits.flowing == {ROAD}
    assert circuits.problems == {}


def test_what_another_dispatcher_stranded_is_taken_back_unless_it_fails_here_too(circuits: Circuits) -> None:
    circuits.learn(returned(1, ALIKE))
    circuits.found_stranded([ROAD, ("events", "other")])
    assert circuits.flowing == {("events", "other")}


def test_a_lane_stops_before_what_waits_for_its_destination(circuits: Circuits) -> None:
    circuits.learn(returned(1, ALIKE))
    assert circuits.stops(row(100))
    assert not circuits.stops(row(101, type="other"))


def test_it_remembers_no_more_roads_than_it_may(circuits: Circuits, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    circuits.learn(returned(1, ALIKE))
    circuits.learn([answer(n, Outcome.RETURNED, type=f"t{n}") for n in range(100, 150)])
    assert len(circuits._roads) <= 11
    assert circuits.strands(row(1000))
