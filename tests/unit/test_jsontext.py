"""Payloads: exact text, the same limits everywhere."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core import jsontext
from outbox_core.errors import InvalidMessage

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.decimals(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@given(values)
def test_what_json_has_comes_back_with_every_digit(value: object) -> None:
    assert jsontext.load(jsontext.dump(value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_comes_back_as_the_decimal_of_its_shortest_text(value: float) -> None:
    assert float(jsontext.load(jsontext.dump(value))) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 3, 1, 12, 0, tzinfo=timezone(timedelta(hours=2))), '"2026-03-01T12:00:00+02:00"'),
        (datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC), '"2026-03-01T12:00:00.000005+00:00"'),
        (date(2026, 3, 1), '"2026-03-01"'),
        (time(12, 30), '"12:30:00"'),
        (timedelta(days=1, hours=2, seconds=3), '"P1DT02H00M03S"'),
        (UUID("0197c1f2-8a40-7b1e-9c55-0f6f5a1f2d11"), '"0197c1f2-8a40-7b1e-9c55-0f6f5a1f2d11"'),
        (9007199254740993, "9007199254740993"),
        ("Zoë 😀", '"Zoë 😀"'),
        ("\\u0000", r'"\\u0000"'),  # six characters, no NUL
        ((1, [2]), "[1,[2]]"),
        (None, "null"), ({}, "{}"), ([], "[]"), ("", '""'), (-0.0, "-0.0"), (True, "true"),
    ],
)  # fmt: skip
def test_each_type_has_one_form(value: object, text: str) -> None:
    assert jsontext.dump(value) == text


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (math.nan, "payload"),
        ({"x": math.inf}, "payload.x"),
        ({"x": [1, -math.inf]}, "payload.x[1]"),
        ({"x": Decimal("NaN")}, "payload.x"),
        ({"a": "x\0y"}, "payload.a"),
        ({"a": "\ud800"}, "payload.a"),
        ({"a\0": 1}, "payload (a name)"),
        ({1: "a"}, "payload"),
        ({"a": b"x"}, "payload.a"),
        ({"a": {1, 2}}, "payload.a"),
        ({"a": object()}, "payload.a"),
        ({"n": 10**4300}, "payload.n"),
        ({"n": Decimal("1" * 4301)}, "payload.n"),
        ({"t": datetime(2026, 1, 1)}, "payload.t"),  # noqa: DTZ001
    ],
)
def test_what_json_lacks_is_refused_by_its_path(value: object, field: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        jsontext.dump(value)
    assert caught.value.field == field
    assert str(caught.value.limit) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_has_a_limit() -> None:
    assert jsontext.dump(nested(100)).startswith("[" * 100)
    with pytest.raises(InvalidMessage, match="100 levels"):
        jsontext.dump(nested(300))


def test_numbers_of_4300_digits_pass_and_longer_texts_do_not_load() -> None:
    longest = 10**4300 - 1
    assert jsontext.load(jsontext.dump(longest)) == longest
    with pytest.raises(ValueError, match="digits"):
        jsontext.load("1" * 5000)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "[-Infinity]", "{", "", "[" * 100_000, "\ud800"])
def test_a_text_that_is_not_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        jsontext.load(text)


@pytest.mark.parametrize(
    ("text", "value"), [("1e309", Decimal("1e309")), ("-0", 0), ("0.10", Decimal("0.10"))]
)
def test_extreme_numbers_load_exactly(text: str, value: object) -> None:
    loaded = jsontext.load(text)
    assert loaded == value
    assert str(loaded) == str(value)


def test_the_text_is_json_for_others() -> None:
    assert json.loads(jsontext.dump({"total": Decimal("12.50")})) == {"total": 12.5}
