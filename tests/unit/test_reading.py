"""What a read decides: who goes, who follows, who is set aside, and where the next read begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from outbox_core.outbox.queue import START, Floor, Row
from outbox_core.outbox.reading import FEWEST, MOST, Reading, choose, lanes

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def row(id: int, key: str = "", *, free: bool = True, age: float = 60, **changes: object) -> Row:
    fields = {
        "id": id, "partition": 0, "key": key, "position": id, "first_position": None, "attempts": 0, "failures": 0,
        "scheduled": False, "direct": False, "late": False, "cause": "first", "operation": None, "type": "t",
        "destination": "events", "available_at": NOW - timedelta(seconds=age), "free": free,
    }  # fmt: skip
    return Row(**{**fields, **changes})  # type: ignore[arg-type]


def test_what_is_free_goes_and_the_floor_follows_it() -> None:
    reading = Reading(100)
    choice = choose(reading, [row(1), row(2, "k")], set(), 10, NOW)
    assert [r.id for r in choice.heads] == [1, 2]
    assert reading.floors[0] == Floor(NOW - timedelta(seconds=60), 2)


def test_the_floor_stays_behind_the_clock_for_rows_that_commit_late() -> None:
    reading = Reading(100)
    choose(reading, [row(1, age=0.1)], set(), 10, NOW)
    assert reading.floors[0] == Floor(NOW - timedelta(seconds=2), 0)


def test_only_one_message_of_a_key_becomes_a_head() -> None:
    reading = Reading(100)
    choice = choose(reading, [row(1, "k"), row(2, "k")], set(), 10, NOW)
    assert [r.id for r in choice.heads] == [1]
    assert not choice.aside


def test_a_row_whose_key_is_in_flight_is_left_where_it_is() -> None:
    """Else a lower position that commits late becomes a head beside its followers, and they are sent twice."""
    reading = Reading(100)
    for _ in range(3):
        choice = choose(reading, [row(1, "k")], {"k"}, 10, NOW)
        assert not choice.heads
        assert not choice.aside
    assert 0 not in reading.floors


def test_a_row_behind_another_is_set_aside_at_its_second_look_and_lets_the_floor_pass() -> None:
    reading = Reading(100)
    stuck = row(2, "k", free=False)
    assert choose(reading, [stuck, row(3)], set(), 10, NOW).aside == []
    assert 0 not in reading.floors
    assert choose(reading, [stuck, row(3)], set(), 10, NOW).aside == [2]
    assert reading.floors[0].position == 3


def test_what_there_is_no_room_for_stays_above_the_floor() -> None:
    reading = Reading(100)
    choice = choose(reading, [row(1), row(2), row(3)], set(), 2, NOW)
    assert [r.id for r in choice.heads] == [1, 2]
    assert reading.floors[0].position == 2


def test_a_scheduled_row_takes_its_place_and_a_direct_one_is_claimed() -> None:
    reading = Reading(100)
    choice = choose(reading, [row(1, scheduled=True), row(2, direct=True)], set(), 10, NOW)
    assert [r.id for r in choice.due] == [1]
    assert [r.id for r in choice.unclaimed] == [2]
    assert not choice.heads


def test_a_lane_ends_at_the_first_row_that_is_not_due_or_is_in_flight() -> None:
    head, second, backing_off, fourth = (
        row(1, "k"),
        row(2, "k", available_at=None),
        row(3, "k", age=-5),
        row(4, "k"),
    )
    assert lanes([head], [second, backing_off, fourth], {}, NOW) == [[head, second]]
    assert lanes([head], [second, fourth], {2: second}, NOW) == [[head]]
    assert lanes([head, row(9)], [], {}, NOW) == [[head], [row(9)]]


def test_reading_goes_deeper_while_partitions_are_full_of_rows_that_cannot_go() -> None:
    reading = Reading(100)
    first = reading.limit(64)
    assert first == FEWEST
    for _ in range(20):
        reading.learn(
            [row(i, partition=1) for i in range(reading.limit(64))][:99], min(99, reading.limit(64))
        )
    assert first < reading.limit(64) <= MOST
    reading.learn([], 16)
    reading.learn([], 16)
    assert reading.limit(64) < MOST


def test_after_a_loss_it_reads_from_the_start() -> None:
    reading = Reading(100)
    choose(reading, [row(1)], set(), 10, NOW)
    reading.forget()
    assert reading.from_floors([0]) == {0: START}


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), st.booleans(), st.booleans(), st.integers(0, 3)),
        max_size=30,
    ),
    st.sets(st.sampled_from(["a", "b"])),
    st.integers(0, 10),
)
def test_no_read_sends_a_busy_key_or_two_of_one_key_or_more_than_there_is_room(
    shapes: list[tuple[str, bool, bool, int]], busy: set[str], room: int
) -> None:
    rows = [
        row(i, key, free=free or not key, scheduled=scheduled, partition=partition, age=60 - i)
        for i, (key, free, scheduled, partition) in enumerate(shapes, 1)
    ]
    reading = Reading(100)
    for _ in range(2):
        choice = choose(reading, rows, busy, room, NOW)
        keys = [r.key for r in choice.heads if r.key]
        assert len(keys) == len(set(keys))
        assert not set(keys) & busy
        assert len(choice.heads) <= room
        assert all(r.free and not r.scheduled for r in choice.heads)
        aside = {r.id: r for r in rows if r.id in choice.aside}
        assert all(r.key and not r.free and not r.scheduled for r in aside.values())
        # No floor passes a row that still has to be looked at.
        decided = {r.id for r in choice.heads} | set(choice.aside)
        for partition, floor in reading.floors.items():
            for r in rows:
                if r.partition == partition and r.id not in decided:
                    assert (r.available_at, r.position) >= floor
