"""One turn: what it may send beside what is in flight already."""

from __future__ import annotations

import random

import pytest
from django.db import transaction

from outbox_core import publish
from outbox_core.outbox import leases, queue
from outbox_core.outbox.circuits import Circuits
from outbox_core.outbox.queue import START, Row
from outbox_core.outbox.reading import Reading
from outbox_core.outbox.turn import Memory, Turn
from outbox_core.sql import Dialect

pytestmark = pytest.mark.django_db(transaction=True)


def rows() -> list[Row]:
    db = Dialect("default")
    return queue.read(db, dict.fromkeys(range(64), START), [], db.now(), 100)


def turn(flying: list[Row]) -> list[list[str]]:
    """The types of what a turn sends, lane by lane, while these rows are in flight."""
    memory = Memory(leases.join("default", "w"), flying={row.id: row for row in flying})
    memory.mine = memory.readable = set(range(64))
    rng = random.Random(1)
    taken = Turn(memory, Circuits(rng), may_read=True)
    taken.commit("default", "w", Reading(100), rng)
    return [[row.type for row in lane] for lane in taken.lanes]


def test_an_earlier_message_of_a_key_that_commits_late_waits_for_what_is_in_flight() -> None:
    """Else it would become the head of a lane beside its followers, and they would be sent twice."""
    with transaction.atomic():
        for type_ in ("late", "flying", "behind"):
            publish(type_, 1, key="k")
        publish("other", 1, key="l")
    flying = [row for row in rows() if row.type == "flying"]
    assert turn(flying) == [["other"]]
    assert turn([]) == [["late", "flying", "behind"], ["other"]]
