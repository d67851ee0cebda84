"""The alarm finds a row that is set aside behind nothing, and nothing else."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from outbox_core import publish
from outbox_core.models import Message, Parked, Pending
from outbox_core.outbox import alarm
from outbox_core.outbox.alarm import BEGINNING, Alarm, behind_nothing
from outbox_core.outbox.leases import Fenced, join
from outbox_core.sql import exclusive
from tests.integration.relaying import arrivals, bind, publish_numbered, running, settled
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ALL = range(64)


def aside(**fields: Any) -> None:
    """Set these rows aside, as no turn would."""
    Pending.objects.filter(**fields).update(available_at=None)


def place(key: str) -> tuple[int, str]:
    return Pending.objects.filter(key=key).values_list("partition", "key")[0]


def hold(message: Message) -> None:
    """Park the message as dead, so that its key waits."""
    row = Pending.objects.get(pk=message.pk)
    Parked.objects.create(
        message_id=row.pk, state="dead", partition=row.partition, key=row.key, position=row.position,
        type=row.type, destination=row.destination, holds=True,
    )  # fmt: skip
    row.delete()


def test_only_a_first_row_behind_nothing_is_found(exchange: str) -> None:
    publish_numbered(40, keys=10)
    assert behind_nothing("default") == ([], BEGINNING)
    firsts = {
        row.key: row.pk for row in Pending.objects.order_by("-pk")
    }  # the last of the loop is the first of its key
    aside(key__in=["k1", "k2", "k3", "k4"])
    Pending.objects.filter(pk=firsts["k2"]).update(stranded=True)
    hold(Message.objects.get(pk=firsts["k3"]))
    Pending.objects.filter(pk=firsts["k4"]).update(available_at="2026-01-01T00:00Z")
    assert behind_nothing("default") == ([place("k1")], BEGINNING)


def test_a_look_goes_on_where_the_last_one_ended(exchange: str) -> None:
    publish_numbered(30, keys=30)
    aside()
    found, after = behind_nothing("default", limit=20)
    assert len(found) == 20
    rest, after = behind_nothing("default", after, limit=20)
    assert len(rest) == 10
    assert not set(found) & set(rest)
    assert after == BEGINNING


def test_a_dispatcher_sends_what_waited_for_ever_and_says_so_loudly(
    exchange: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = bind(exchange)
    publish_numbered(6, keys=3)
    aside()
    with caplog.at_level(logging.ERROR, "outbox.alarm"), running():
        wait_until(settled, 10)
    assert len(arrivals(queue, 6)) == 6
    assert len([r for r in caplog.records if "set aside behind nothing" in r.message]) == 3


def test_it_acts_in_its_own_partitions_and_under_its_own_lease_only(exchange: str, monkeypatch: Any) -> None:
    with exclusive("default"):
        for n in range(20):
            publish("shop.sold", {}, key=f"k{n}")
    aside()
    own = place("k1")[0]
    token = join("default", "own")
    assert Alarm("default").look(token, {own}) == Pending.objects.filter(partition=own).count()
    assert not Pending.objects.exclude(partition=own).exclude(available_at=None).exists()
    monkeypatch.setattr(alarm, "KEYS", 100)
    with pytest.raises(Fenced):
        Alarm("default").look(token + 1, ALL)
    assert not Pending.objects.exclude(partition=own).exclude(available_at=None).exists()
