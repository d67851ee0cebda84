"""A dispatcher that is killed at the worst moments: nothing is lost, repeats keep their id and say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outbox_core.models import Dispatch, FailedAttempt, Message, Parked, Pending
from tests.chaos.mischief import freeze
from tests.integration.relaying import (
    arrivals,
    bind,
    copies,
    first_copies,
    known_ids,
    positions_by_key,
    publish_numbered,
    settled,
)  # fmt: skip
from tests.processes import Process

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = 50
CRASHES = {"OUTBOX_ALLOW_CRASH": "1"}


@pytest.mark.parametrize("point", ["read", "marked", "published", "confirmed", "settled"])
def test_a_dispatcher_killed_at_a_crash_point_loses_nothing(
    point: str,
    exchange: str,
    spawn: Callable[..., Process],
    wait_until: Any,
    scale: Any,
    outbox_settings: Any,
) -> None:
    outbox_settings(LEASE=2, HEARTBEAT=0.4, BATCH_SIZE=200, WINDOW=200)
    count = max(1000, scale(5000))
    queue = bind(exchange)
    publish_numbered(count, keys=KEYS)
    killed = spawn("outbox_dispatch", "--name", "killed", env={**CRASHES, "OUTBOX_CRASH_AT": f"{point}:3"})
    assert killed.wait(60) == -9
    in_the_middle = Pending.objects.count()
    assert 0 < in_the_middle <= count
    spawn("outbox_dispatch", "--name", "heir")
    wait_until(settled, 120)

    found = arrivals(queue, count, 60)
    seen = copies(found)
    assert set(seen) == known_ids()
    assert not Parked.objects.exists()
    assert not FailedAttempt.objects.exclude(kind="unknown").exists()
    for positions in positions_by_key(first_copies(found)).values():
        assert positions == sorted(positions)
    surplus = len(found) - count
    assert Dispatch.objects.count() == count
    if point in ("published", "confirmed"):
        assert surplus >= 1
    repeats = [d for d in found if d.headers["outbox-attempt"] > 1]
    assert {d.headers["outbox-attempt"] for d in repeats} <= {2}
    # Each that came twice said so the second time, and the timeline knows that it was maybe sent.
    twice = {id_ for id_, times in seen.items() if times > 1}
    assert twice <= {d.message_id for d in repeats}
    maybe = set(FailedAttempt.objects.filter(worker="killed").values_list("message", flat=True))
    by_id = {str(m.message_id): m.id for m in Message.objects.all()}
    assert {by_id[str(d.message_id)] for d in repeats} == maybe
    if point in ("marked", "published", "confirmed"):
        assert maybe
    assert set(Dispatch.objects.filter(message__in=maybe).values_list("cause", flat=True)) <= {"resend"}


def test_a_dispatcher_that_was_frozen_beyond_its_lease_is_fenced_and_counts_no_failure(
    exchange: str, spawn: Callable[..., Process], wait_until: Any, scale: Any, outbox_settings: Any
) -> None:
    outbox_settings(LEASE=2, HEARTBEAT=0.4, BATCH_SIZE=100, WINDOW=100)
    count = max(1000, scale(5000))
    queue = bind(exchange)
    frozen = spawn("outbox_dispatch", "--name", "frozen")
    wait_until(lambda: "frozen" in _owners(), 20)
    publish_numbered(count, keys=KEYS)
    wait_until(Dispatch.objects.exists, 20)
    freeze(frozen)
    spawn("outbox_dispatch", "--name", "heir")
    wait_until(settled, 120)
    frozen.cont()
    wait_until(lambda: "Lost lease" in frozen.output, 20)
    publish_numbered(100, keys=KEYS)
    wait_until(settled, 60)
    found = arrivals(queue, count + 100, 60)
    assert set(copies(found)) == known_ids()
    for positions in positions_by_key(first_copies(found)).values():
        assert positions == sorted(positions)
    assert not FailedAttempt.objects.exclude(kind="unknown").exists()
    assert not Parked.objects.exists()


def _owners() -> set[str]:
    from outbox_core.models import Partition

    return set(Partition.objects.exclude(lease=None).values_list("lease__name", flat=True))
