"""The hash chain: what it notices, and what both databases give back."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from outbox_core import provision
from outbox_core.errors import InvalidMessage
from outbox_core.models import Operation
from outbox_core.operations import audit

pytestmark = pytest.mark.django_db(transaction=True)
ANA = audit.Actor("7", "Zoë 😀", "dashboard", "::1")


def write(reason: str = "because", **fields: object) -> Operation:
    with transaction.atomic():
        return audit.record("default", actor=ANA, verb="retry", reason=reason, **fields)  # type: ignore[arg-type]


@pytest.fixture
def unguarded():
    provision.unguard("default")
    yield
    provision.guard("default")


def test_rows_hang_together_and_survive_the_database() -> None:
    first = write(
        before={"n": 1, "big": 2**53 + 1, "none": None, "list": [True, "ü", 0.25]}, selection={"older": 600.0}
    )
    second = write()
    assert first.previous_hash == "" and second.previous_hash == first.hash
    assert second.pk > first.pk and audit.head() == (second.pk, second.hash)
    assert audit.verify() == []
    assert Operation.objects.get(pk=first.pk).before["big"] == 2**53 + 1


def test_a_row_cannot_be_changed_or_deleted() -> None:
    row = write()
    for act in (lambda: Operation.objects.filter(pk=row.pk).update(actor="eve"), row.delete):
        with pytest.raises(Exception, match="append-only"), transaction.atomic():
            act()
    assert audit.verify() == []


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize(
    "field", ["actor", "reason", "verb", "message_id", "outcome", "before", "selection", "at"]
)
def test_a_changed_field_shows(field: str) -> None:
    row, _ = write(), write()
    value: object = {"n": 2} if field in ("before", "selection") else "x"
    if field == "at":
        value = row.at.replace(year=2001)
    Operation.objects.filter(pk=row.pk).update(**{field: value})
    assert audit.verify() == [
        f"Operation {row.pk}: its content was changed, or it was written with another AUDIT_KEY."
    ]


@pytest.mark.usefixtures("unguarded")
def test_a_removed_row_shows_at_the_next_one() -> None:
    write()
    row, last = write(), write()
    row.delete()
    assert audit.verify() == [f"Operation {last.pk}: the row before it was removed, inserted or changed."]


@pytest.mark.usefixtures("unguarded")
def test_two_rows_that_swapped_places_show() -> None:
    one, two = write("one"), write("two")
    Operation.objects.filter(pk=one.pk).update(reason="two")
    Operation.objects.filter(pk=two.pk).update(reason="one")
    assert len(audit.verify()) == 2


def test_a_row_written_without_the_key_shows(settings) -> None:
    write()
    key = settings.OUTBOX.get("AUDIT_KEY", "")
    settings.OUTBOX = {**settings.OUTBOX, "AUDIT_KEY": "another"}
    write()
    settings.OUTBOX = {**settings.OUTBOX, "AUDIT_KEY": key}
    assert len(audit.verify()) == 1


def test_a_rolled_back_act_leaves_the_chain_whole() -> None:
    write()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        audit.record("default", actor=ANA, verb="retry", reason="r")
        raise ZeroDivisionError
    write()
    assert Operation.objects.count() == 2 and audit.verify() == []


def test_a_row_outside_a_transaction_is_refused() -> None:
    assert not connection.in_atomic_block
    with pytest.raises(transaction.TransactionManagementError):
        audit.record("default", actor=ANA, verb="retry", reason="r")


@pytest.mark.parametrize(
    ("reason", "found"), [("", "nothing"), (" \n", "nothing"), ("x" * 501, "501 characters")]
)
def test_a_reason_has_1_to_500_characters(reason: str, found: str) -> None:
    with pytest.raises(InvalidMessage) as error:
        audit.checked_reason(reason)
    assert (error.value.field, error.value.actual) == ("reason", found)
    assert audit.checked_reason(" " + "x" * 500 + " ") == "x" * 500
