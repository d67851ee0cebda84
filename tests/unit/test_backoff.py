"""Durations and back-off."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core import backoff
from outbox_core.errors import InvalidMessage


@given(st.integers(1, 10**6), st.floats(0, 100), st.floats(0, 1000), st.integers())
def test_a_delay_is_never_above_the_cap_or_the_doubled_base(
    failures: int, base: float, cap: float, seed: int
) -> None:
    wait = backoff.delay(failures, base, cap, random.Random(seed))
    assert 0 <= wait <= cap
    if failures <= 10:
        assert wait <= base * 2 ** (failures - 1)


def test_delays_are_spread_over_their_whole_range() -> None:
    rng = random.Random(1)
    waits = [backoff.delay(4, 1, 300, rng) for _ in range(500)]
    assert min(waits) < 1
    assert 7 < max(waits) <= 8


@pytest.mark.parametrize(
    ("given_", "seconds"), [(1, 1.0), (0, 0.0), (2.5, 2.5), (timedelta(minutes=1), 60.0)]
)
def test_durations_are_seconds_or_timedeltas(given_: object, seconds: float) -> None:
    assert backoff.seconds(given_, "delay") == seconds


@pytest.mark.parametrize("given_", [-1, timedelta(seconds=-1), 1e12, float("nan"), "5", None, True])
def test_other_durations_are_refused_by_name(given_: object) -> None:
    with pytest.raises(InvalidMessage) as caught:
        backoff.seconds(given_, "delay")
    assert caught.value.field == "delay"
