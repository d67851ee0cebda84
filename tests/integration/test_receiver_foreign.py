"""Messages of other producers: CloudEvents in both modes, Celery's, and what is wrong with some of them."""

from __future__ import annotations

import base64
import datetime
import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction

from outbox_core.inbox import retries
from outbox_core.inbox.message import InboxMessage
from outbox_core.inbox.outcomes import Outcome
from outbox_core.models import Duplicate, Handling, Receipt
from outbox_core.transports.base import Delivery
from tests.integration.receiving import delivery, letters, run_due, subscribed, take, write_letter

pytestmark = pytest.mark.django_db(transaction=True)

STRUCTURED = "application/cloudevents+json; charset=utf-8"
EVENT = {
    "specversion": "1.0", "id": "A234-1234-1234", "source": "https://example.com/storage", "type": "com.example.stored",
    "subject": "blob-7", "time": "2026-03-01T12:00:00Z", "datacontenttype": "application/json", "region": "eu",
}  # fmt: skip


def foreign(body: Any = b"{}", **changes: Any) -> Delivery:
    """A delivery with nothing of our own format."""
    fields: dict[str, Any] = {
        "handle": None, "queue": "", "redelivered": False, "headers": {}, "message_id": None, "type": "",
        "exchange": "", "routing_key": "stored", "body": body if isinstance(body, bytes) else json.dumps(body).encode(),
    }  # fmt: skip
    return Delivery(**{**fields, **changes})


def event(data: Any = None, **changes: Any) -> Delivery:
    """A CloudEvent in the structured mode."""
    return foreign({**EVENT, "data": {"n": 1} if data is None else data, **changes}, content_type=STRUCTURED)


def binary(colon: str = "_", body: Any = None, id: str = EVENT["id"], **changes: Any) -> Delivery:
    """The same in the binary mode."""
    headers = {
        f"cloudEvents{colon}{name}": v for name, v in {**EVENT, "id": id}.items() if name != "datacontenttype"
    }
    return foreign(
        {"n": 1} if body is None else body, headers=headers, content_type="application/json", **changes
    )


@pytest.mark.parametrize("given", [event(), binary("_"), binary(":")], ids=["structured", "_", ":"])
def test_a_cloudevent_is_what_its_attributes_say_in_every_mode(given: Any) -> None:
    seen: list[InboxMessage] = []
    with subscribed(seen.append, "com.example.*") as subscription:
        assert take(subscription, given) is Outcome.HANDLED
        assert take(subscription, given) is Outcome.DUPLICATE
    [m] = seen
    assert (m.id, m.type, m.key, m.source) == (EVENT["id"], EVENT["type"], EVENT["subject"], EVENT["source"])
    assert m.published_at == datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
    assert m.payload == {"n": 1}
    assert m.headers == {}
    assert Receipt.objects.get().message_id == EVENT["id"]
    assert Duplicate.objects.get().same_payload


def test_an_event_is_known_by_its_own_id_whatever_id_each_sending_of_it_has() -> None:
    """Spring and others give every AMQP message a new id, also when the same event is sent again."""
    with subscribed(write_letter, "com.example.*") as subscription:
        assert take(subscription, binary(message_id="one")) is Outcome.HANDLED
        assert take(subscription, binary(message_id="two")) is Outcome.DUPLICATE
    assert letters(EVENT["id"]) == 1


def test_the_time_of_an_event_may_be_an_amqp_time() -> None:
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    given = binary()
    given.headers["cloudEvents_time"] = when
    seen: list[InboxMessage] = []
    with subscribed(seen.append, "com.example.*") as subscription:
        take(subscription, given)
    assert seen[0].published_at == when


@pytest.mark.parametrize(
    ("changes", "payload"),
    [
        ({"data": None}, None),
        ({"data": "text"}, "text"),
        ({"data": []}, []),
        ({"data_base64": base64.b64encode(b'{"price": 1.10}').decode()}, {"price": Decimal("1.10")}),
        ({"datacontenttype": None}, {"n": 1}),
        ({"datacontenttype": "application/vnd.shop+json"}, {"n": 1}),
    ],
)
def test_what_a_structured_event_may_carry(changes: dict[str, Any], payload: Any) -> None:
    said = {**EVENT, "data": {"n": 1}, **changes}
    if "data_base64" in changes:
        del said["data"]
    seen: list[InboxMessage] = []
    with subscribed(seen.append, "com.example.*") as subscription:
        assert take(subscription, foreign(said, content_type=STRUCTURED)) is Outcome.HANDLED
    assert seen[0].payload == payload


def test_the_numbers_of_a_structured_event_keep_every_digit() -> None:
    body = json.dumps(EVENT)[:-1] + ', "data": {"price": 1.10, "big": ' + "9" * 40 + "}}"
    seen: list[InboxMessage] = []
    with subscribed(seen.append, "com.example.*") as subscription:
        take(subscription, foreign(body.encode(), content_type=STRUCTURED))
    assert str(seen[0].payload["price"]) == "1.10"
    assert seen[0].payload["big"] == int("9" * 40)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (foreign(b"{", content_type=STRUCTURED), "not JSON"),
        (foreign([1], content_type=STRUCTURED), "no CloudEvent: its body is a list"),
        (event(specversion=None), "no CloudEvent: specversion is missing"),
        (event(specversion="0.3"), "specversion is '0.3', but only 1.x can be read"),
        (event(datacontenttype="text/xml"), "content type is 'text/xml'"),
        (foreign({**EVENT, "data_base64": "%%%"}, content_type=STRUCTURED), "data_base64 is no base64"),
        (foreign({**EVENT, "data_base64": "/w=="}, content_type=STRUCTURED), "not UTF-8"),
        (event(id="i" * 256), "id is 256 bytes long, but the limit is 255"),
        (foreign([EVENT], content_type="application/cloudevents-batch+json"), "a batch of CloudEvents"),
        (foreign(gzip.compress(b"{}"), content_encoding="gzip"), "content encoding is 'gzip'"),
        (foreign(gzip.compress(b"{}"), headers={"compression": "application/x-gzip"}), "is compressed"),
        (foreign("é".encode("latin-1"), content_encoding="latin-1"), "content encoding is 'latin-1'"),
        (foreign(b'"' + b"x" * 2_000_000 + b'"'), "body is 2000002 bytes long, but the limit is 1048576"),
        (foreign(b"\x80\x04K\x01.", content_type="application/x-python-serialize"), "only JSON can be read"),
        (foreign(routing_key=""), "type is empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_kept_with_its_reason_and_every_byte(given: Any, reason: str) -> None:
    with subscribed(write_letter, "com.example.*", "stored") as subscription:
        assert take(subscription, given) is Outcome.UNDECODABLE
        assert take(subscription, event(id="another")) is Outcome.HANDLED
    row = Handling.objects.get()
    assert reason in row.error
    assert bytes(row.body) == given.body
    assert letters() == 1


def test_what_was_compressed_is_still_refused_when_a_person_tries_again() -> None:
    with subscribed(write_letter, "stored") as subscription:
        take(subscription, foreign(gzip.compress(b"{}"), content_encoding="gzip", message_id="i"))
        with transaction.atomic():
            retries.retry("default", Handling.objects.get().pk)
        assert run_due(subscription) == [Outcome.UNDECODABLE]
    assert "content encoding" in Handling.objects.get().error


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "us-ascii", "identity", "binary", ""])
def test_what_other_libraries_call_plain_json_is_read(encoding: str) -> None:
    with subscribed(write_letter, "stored") as subscription:
        assert take(subscription, foreign(content_encoding=encoding)) is Outcome.HANDLED


def test_a_celery_task_has_the_id_and_the_name_that_celery_gave_it() -> None:
    body = [[7], {"colour": "red"}, {"callbacks": None}]
    headers = {"lang": "py", "task": "shop.tasks.paint", "id": "6ee5e7a7", "retries": 0, "argsrepr": "(7,)"}
    seen: list[InboxMessage] = []
    given = foreign(
        body, headers=headers, routing_key="celery", content_encoding="utf-8", correlation_id="6ee5e7a7"
    )
    with subscribed(seen.append, "shop.tasks.*") as subscription:
        assert take(subscription, given) is Outcome.HANDLED
        assert take(subscription, given) is Outcome.DUPLICATE
    [m] = seen
    assert (m.id, m.type, m.payload) == ("6ee5e7a7", "shop.tasks.paint", body)
    assert m.headers["retries"] == 0


@pytest.mark.parametrize(
    "given",
    [event, lambda: foreign(type="OrderPlaced"), lambda: foreign(headers={"task": "paint", "id": "1"})],
)
def test_a_type_that_nobody_handles_is_handled_by_the_binding_it_came_through(
    given: Callable[[], Any],
) -> None:
    """What others call a type is often no routing key: `com.example.order.placed` through `orders.placed`."""
    seen: list[InboxMessage] = []
    with subscribed(seen.append, "stored") as subscription:
        assert take(subscription, given()) is Outcome.HANDLED
    assert seen[0].type in (EVENT["type"], "OrderPlaced", "paint")


def test_the_type_of_our_own_messages_decides_alone() -> None:
    with subscribed(write_letter, "stored") as subscription:
        assert take(subscription, delivery(type="shop.sold", routing_key="stored")) is Outcome.UNDECODABLE
    assert "no handler for type" in Handling.objects.get().error


@pytest.mark.parametrize("given", [event(id="i" * 256), binary(id="i" * 256)])
def test_what_has_an_id_that_no_column_holds_is_handled_when_a_person_tries_again(given: Delivery) -> None:
    with subscribed(write_letter, "com.example.*") as subscription:
        assert take(subscription, given) is Outcome.UNDECODABLE
        with transaction.atomic():
            retries.retry("default", Handling.objects.get().pk)
        assert run_due(subscription) == [Outcome.HANDLED]
    assert letters() == 1
    assert not Handling.objects.exists()
