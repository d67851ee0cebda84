"""Frames as bytes: what goes out can be read back, and what comes in never breaks the reader."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from outbox_core.transports.amqp_frames import Unsendable, check_exchange, encode
from outbox_core.transports.amqp_reading import read_header_frame, read_properties
from outbox_core.transports.base import Send
from tests import pikas_form

whole = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
values = st.recursive(
    st.booleans() | whole | texts | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(names, inner),
    max_leaves=20,
)


def send(**changes: Any) -> Send:
    return Send(
        **{"tag": 1, "message_id": "m", "exchange": "e", "routing_key": "k", "body": b"{}", **changes}
    )


def frames_of(data: bytes) -> list[frame.Frame]:
    found = []
    while data:
        size, one = frame.decode_frame(data)
        assert one is not None
        found.append(one)
        data = data[size:]
    return found


@given(st.dictionaries(names, values), names, texts.filter(lambda t: len(t.encode()) <= 255))
def test_headers_and_properties_are_read_back_as_they_were_sent(
    headers: dict[str, Any], type_: str, correlation_id: str
) -> None:
    written = encode(send(headers=headers, type=type_, correlation_id=correlation_id, timestamp=7), 3, 0)
    _, header, _ = frames_of(written)
    read = read_properties(b"".join(header.properties.encode()))
    assert read.headers == headers
    assert (read.type or "", read.correlation_id or "", read.timestamp) == (type_, correlation_id, 7)
    assert (read.message_id, read.delivery_mode, read.content_type) == ("m", 2, "application/json")


short = texts.filter(lambda t: len(t.encode()) <= 255)


@given(
    st.builds(
        send, message_id=short.filter(bool), exchange=short, routing_key=short, type=short, app_id=short,
        body=st.binary(max_size=50), mandatory=st.booleans(), correlation_id=short, content_type=short,
        timestamp=st.none() | st.integers(0, 2**64 - 1), headers=st.dictionaries(names, values),
    ),
    st.integers(1, 2047),
)  # fmt: skip
def test_the_bytes_are_those_that_pika_would_send(made: Send, channel: int) -> None:
    assert encode(made, channel, 0) == pikas_form.frames(made, channel)


@given(st.binary(max_size=5000), st.sampled_from([0, 300, 4096]))
def test_a_body_is_cut_into_frames_that_fit(body: bytes, frame_max: int) -> None:
    written = encode(send(body=body, headers={}), 1, frame_max)
    method, header, *bodies = frames_of(written)
    assert method.method.NAME == "Basic.Publish"
    assert header.body_size == len(body)
    assert b"".join(part.fragment for part in bodies) == body
    assert all(len(part.marshal()) <= frame_max for part in bodies if frame_max)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reading_of_properties(encoded: bytes) -> None:
    assert isinstance(read_properties(encoded), spec.BasicProperties)


def table(*entries: bytes) -> bytes:
    inside = b"".join(b"\x01" + bytes([ord("a") + n]) + entry for n, entry in enumerate(entries))
    return struct.pack(">HI", 1 << 13, len(inside)) + inside


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (b"t\x01", True), (b"b\xff", -1), (b"B\xff", 255), (b"s\xff\xfe", -2), (b"U\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xff", -1), (b"i\xff\xff\xff\xff", 2**32 - 1), (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (struct.pack(">cf", b"f", 0.5), 0.5), (struct.pack(">cd", b"d", 1.25), 1.25),
        (struct.pack(">cBi", b"D", 2, 110), Decimal("1.10")), (b"V", None),
        (struct.pack(">cQ", b"T", 1_767_225_600), datetime(2026, 1, 1, tzinfo=UTC)),
        (struct.pack(">cQ", b"T", 1_767_225_600_000_000_000), 1_767_225_600_000_000_000),
        (b"S\x00\x00\x00\x02\xff\xfe", b"\xff\xfe"), (b"x\x00\x00\x00\x01a", b"a"),
        (b"A\x00\x00\x00\x02t\x00", [False]),
    ],
)  # fmt: skip
def test_every_kind_of_header_value_is_read(entry: bytes, value: object) -> None:
    assert read_properties(table(entry, b"t\x01")).headers == {"a": value, "b": True}


def test_a_float_that_is_no_number_is_read() -> None:
    assert math.isnan(read_properties(table(struct.pack(">cd", b"d", math.nan))).headers["a"])


def test_an_unknown_kind_hides_the_rest_of_its_table_only() -> None:
    encoded = table(b"t\x01", b"?????", b"t\x00")
    encoded = struct.pack(">H", (1 << 13) | (1 << 7)) + encoded[2:] + b"\x02id"
    read = read_properties(encoded)
    assert read.headers == {"a": True}
    assert read.message_id == "id"


def test_a_header_frame_is_waited_for_until_it_is_whole() -> None:
    whole = frame.Header(5, 99, spec.BasicProperties(message_id="m")).marshal()
    for size in range(len(whole)):
        assert read_header_frame(whole[:size]) == (0, None)
    size, header = read_header_frame(whole + b"more")
    assert size == len(whole)
    assert header is not None
    assert (header.channel_number, header.body_size, header.properties.message_id) == (5, 99, "m")


@pytest.mark.parametrize(
    "field", ["message_id", "type", "correlation_id", "app_id", "content_type", "routing_key"]
)
def test_a_property_of_more_than_255_bytes_is_named_with_size_and_limit(field: str) -> None:
    encode(send(**{field: "é" * 127}), 1, 0)
    with pytest.raises(Unsendable) as caught:
        encode(send(**{field: "é" * 128}), 1, 0)
    assert caught.value.detail == f"{field}: 256 bytes, but the limit is 255"


def test_headers_larger_than_the_frame_say_size_and_limit() -> None:
    with pytest.raises(Unsendable) as caught:
        encode(send(headers={"stack": "x" * 5000}), 1, 4096)
    assert caught.value.error == "HeadersTooLarge"
    assert "4096" in caught.value.detail


def test_the_largest_header_frame_that_fits_is_exactly_the_limit() -> None:
    size = len(frames_of(encode(send(headers={"stack": ""}), 1, 0))[1].marshal())
    encode(send(headers={"stack": "x" * (4096 - size)}), 1, 4096)
    with pytest.raises(Unsendable):
        encode(send(headers={"stack": "x" * (4097 - size)}), 1, 4096)


@pytest.mark.parametrize(
    "headers",
    [
        {"bad": 2**63},
        {"bad": object()},
        {"bad": 1.5},
        {"bad": "\ud800"},
        {"bad": [{"deep": {1, 2}}]},
        {"b" * 256: 1},
        {1: 2},
    ],
    ids=["65-bit", "object", "float", "surrogate", "set", "long name", "no text"],
)
def test_a_header_without_an_amqp_form_is_named(headers: dict[Any, Any]) -> None:
    with pytest.raises(Unsendable) as caught:
        encode(send(headers={"fine": 1, **headers}), 1, 0)
    assert caught.value.error == "BadHeader"
    assert repr(next(iter(headers)))[:3] in caught.value.detail
    assert len(caught.value.detail) < 800


@pytest.mark.parametrize(
    "changes", [{"timestamp": -1}, {"timestamp": 2**64}, {"type": "\ud800"}, {"message_id": 7}]
)
def test_a_property_without_an_amqp_form_is_unsendable(changes: dict[str, Any]) -> None:
    with pytest.raises(Unsendable):
        encode(send(**changes), 1, 0)


@pytest.mark.parametrize("exchange", ["x" * 256, "\ud800"])
def test_an_exchange_that_cannot_be_asked_for_is_unsendable(exchange: str) -> None:
    check_exchange(send(exchange="x" * 255))
    with pytest.raises(Unsendable, match="exchange"):
        check_exchange(send(exchange=exchange))
