"""What no handler can be given is kept as it came, with a reason, and acked; no consumer is hurt by it."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest

from outbox_core.inbox import kept
from outbox_core.inbox.message import InboxMessage
from outbox_core.inbox.outcomes import Outcome
from outbox_core.models import Duplicate, FailedAttempt, Handling, Receipt
from tests.integration.receiving import delivery, letters, run_due, subscribed, take, write_letter

pytestmark = pytest.mark.django_db(transaction=True)

DEEP = b"[" * 101 + b"]" * 101
LONG = b"1" * 4301


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"body": b"{"}, "not JSON"),
        ({"body": b""}, "not JSON"),
        ({"body": b"NaN"}, "NaN"),
        ({"body": b"\xff\xfe"}, "not UTF-8 (byte 0)"),
        ({"body": DEEP}, "100 levels"),
        ({"body": b"[" * 200_000}, "nested"),
        ({"body": LONG}, "digits"),
        ({"body": LONG[:4000] + b"." + LONG[:400]}, "digits"),
        ({"body": b"1e99999999999999999999"}, "not JSON"),
        ({"content_type": "text/xml"}, "content type is 'text/xml'"),
        ({"content_type": "application/json; charset=latin-1"}, "charset is latin-1"),
        ({"type": "", "routing_key": ""}, "type is empty"),
        (
            {"type": "", "routing_key": "", "headers": {"cloudEvents_type": "é" * 200}},
            "type is 400 bytes long",
        ),
        ({"headers": {"outbox-key": "k\0"}}, "key holds a character"),
        ({"headers": {"outbox-key": "k" * 256}}, "key is 256 bytes long"),
        ({"message_id": "i" * 256}, "id is 256 bytes long, but the limit is 255"),
        ({"message_id": "i\0"}, "id holds a character"),
        ({"message_id": "\ud800"}, "id holds a character"),
        ({"type": "test.unknown"}, 'no handler for type "test.unknown"'),
    ],
)
def test_what_cannot_be_handled_is_kept_with_its_reason_and_bytes(
    changes: dict[str, Any], reason: str
) -> None:
    with subscribed(write_letter) as subscription:
        given = delivery(**changes)
        assert take(subscription, given) is Outcome.UNDECODABLE
        assert take(subscription, delivery()) is Outcome.HANDLED
    row = Handling.objects.get()
    assert (row.state, row.available_at, row.attempts) == ("undecodable", None, 0)
    assert reason in row.error
    assert bytes(row.body) == given.body
    assert FailedAttempt.objects.get().kind == "permanent"
    assert Receipt.objects.count() == letters() == 1


@pytest.mark.parametrize(
    "body",
    [b"null", b"{}", b"[]", b'""', b"1e200000", b"\xef\xbb\xbf{}", b"1" * 4300, b"[" * 100 + b"]" * 100],
)
def test_what_is_json_within_the_limits_is_handled(body: bytes) -> None:
    with subscribed(write_letter) as subscription:
        assert take(subscription, delivery(body=body)) is Outcome.HANDLED


@pytest.mark.parametrize(
    "content_type",
    ["", "application/json", "APPLICATION/JSON; charset=UTF-8", "application/x.shop+json", "text/json"],
)
def test_every_name_of_json_is_accepted(content_type: str) -> None:
    with subscribed(write_letter) as subscription:
        assert take(subscription, delivery(content_type=content_type)) is Outcome.HANDLED


def test_a_second_copy_of_an_undecodable_message_is_a_duplicate() -> None:
    with subscribed(write_letter) as subscription:
        given = delivery(body=b"{")
        take(subscription, given)
        assert take(subscription, given) is Outcome.DUPLICATE
    assert Handling.objects.count() == Duplicate.objects.count() == 1


def test_a_message_whose_handler_was_missing_is_handled_after_a_retry() -> None:
    from django.db import transaction

    from outbox_core.inbox import retries

    with subscribed(write_letter, consumer="once-without") as subscription:
        take(subscription, delivery(type="test.later"))
    with subscribed(write_letter, "test.later", consumer="once-without") as subscription:
        with transaction.atomic():
            retries.retry("default", Handling.objects.get().pk)
        assert run_due(subscription) == [Outcome.HANDLED]
    assert letters() == 1


def test_a_delivery_without_an_id_is_handled_each_time_and_says_so() -> None:
    def fail(message: InboxMessage) -> None:
        write_letter(message)
        raise LookupError

    with subscribed(write_letter) as subscription:
        assert take(subscription, delivery(message_id=None)) is Outcome.HANDLED
        assert take(subscription, delivery(message_id=None)) is Outcome.HANDLED
    assert letters() == 2
    assert not Duplicate.objects.exists()
    with subscribed(fail) as subscription:
        assert take(subscription, delivery(message_id=None)) is Outcome.KEPT
    row = Handling.objects.get()
    assert row.envelope[kept.NO_ID] is True
    assert kept.arrived(row).id == row.message_id


def test_a_message_of_a_foreign_producer_is_handled() -> None:
    seen: list[InboxMessage] = []
    with subscribed(seen.append, "sensor.#") as subscription:
        given = delivery(
            type="", routing_key="sensor.kitchen.heat", headers={"x": 1}, content_type="", message_id="no-uuid",
            timestamp=1_767_225_600,
        )  # fmt: skip
        assert take(subscription, given) is Outcome.HANDLED
    (m,) = seen
    assert (m.id, m.type, m.key, m.attempt, m.position) == ("no-uuid", "sensor.kitchen.heat", "", 1, None)
    assert m.published_at is not None


def test_headers_of_every_kind_are_kept_and_come_back() -> None:
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    headers = {
        "outbox-attempt": 1, "text": "a\0b", "surrogate": "\ud800", "bytes": b"\x00\xff", "none": None,
        "big": 2**63 - 1,
        "decimal": Decimal("1.10"), "when": when, "list": [b"\0", {"$bytes": "no"}], "nan": float("inf"),
        "table": {"a\0": 1, "b": [True]}, "one": {"only": "x"}, "$text": "plain",
    }  # fmt: skip

    def fail(message: InboxMessage) -> None:
        raise LookupError

    with subscribed(fail) as subscription:
        given = delivery(
            headers=headers, redelivered=False, app_id="a", timestamp=5, correlation_id="c", type="test.said"
        )
        assert take(subscription, given) is Outcome.KEPT
    restored = kept.restore(Handling.objects.get())
    assert restored.headers == given.headers
    assert (restored.message_id, restored.type, restored.body) == (given.message_id, given.type, given.body)
    assert (restored.app_id, restored.timestamp, restored.correlation_id) == ("a", 5, "c")
    assert (restored.exchange, restored.routing_key) == (given.exchange, given.routing_key)


@pytest.mark.parametrize(
    "headers", [{"outbox-attempt": 2**40}, {"outbox-attempt": -1}, {"outbox-position": 2**70}]
)
def test_numbers_that_no_column_holds_are_brought_within_limits(headers: dict[str, Any]) -> None:
    with subscribed(write_letter) as subscription:
        assert take(subscription, delivery(headers=headers)) is Outcome.HANDLED


def test_headers_that_are_nested_too_deeply_are_lost_and_the_row_says_so() -> None:
    nested: dict[str, Any] = {}
    for _ in range(500):
        nested = {"in": nested}

    def fail(message: InboxMessage) -> None:
        raise LookupError

    with subscribed(fail) as subscription:
        assert take(subscription, delivery(headers={"deep": nested})) is Outcome.KEPT
    row = Handling.objects.get()
    assert "nested" in row.envelope["headers_lost"]
    assert kept.restore(row).headers == {}


def test_what_our_own_code_cannot_cope_with_is_kept_and_does_not_stop_the_queue() -> None:
    """A header whose value is no AMQP value at all stands for what nobody thought of."""

    class Odd(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            if name == "traceparent":
                raise ZeroDivisionError("nobody thought of this")
            return super().get(name, default)

    with subscribed(write_letter) as subscription:
        assert take(subscription, delivery()) is Outcome.HANDLED
        odd = delivery()
        object.__setattr__(odd, "headers", Odd(odd.headers))
        assert take(subscription, odd) is Outcome.UNDECODABLE
        assert take(subscription, odd) is Outcome.DUPLICATE
    row = Handling.objects.get()
    assert (row.state, row.error_class) == ("undecodable", "ZeroDivisionError")
    assert "nobody thought of this" in row.error
