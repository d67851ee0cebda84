"""Trace context and derived ids: what a handler's messages inherit."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core import context, tracing

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PARENT, True),
        (PARENT.upper(), False),
        (PARENT + "-x", False),
        ("01" + PARENT[2:] + "-more", True),
        ("ff" + PARENT[2:], False),
        ("00-" + "0" * 32 + "-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01", False),
        ("", False),
        ("01" + PARENT[2:] + "-" + "x" * 255, False),
        (PARENT + "\n", False),
    ],
)
def test_a_traceparent_is_valid_as_the_w3c_says(text: str, expected: bool) -> None:
    assert tracing.valid(text) is expected


def test_outside_a_handler_nothing_is_traced() -> None:
    assert context.current() is None
    assert tracing.current_traceparent() == ""


def test_a_handler_passes_its_traceparent_on_if_it_is_one() -> None:
    with context.handling(context.Incoming("m", "c", "r", PARENT)):
        assert tracing.current_traceparent() == PARENT
    with context.handling(context.Incoming("m", "c", "r", "junk")):
        assert tracing.current_traceparent() == ""
    assert context.current() is None


def test_the_context_ends_with_the_handler_even_if_it_raises() -> None:
    with pytest.raises(LookupError), context.handling(context.Incoming("m", "c", "r", "")):
        raise LookupError
    assert context.current() is None


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


@given(TEXT, TEXT, st.integers(1, 5), TEXT, TEXT, st.integers(1, 5))
def test_derived_ids_are_equal_only_for_equal_parts(a: str, b: str, n: int, c: str, d: str, m: int) -> None:
    same = (a, b, n) == (c, d, m)
    assert (context.derived_id(a, b, n) == context.derived_id(c, d, m)) is same
    assert context.derived_id(a, b, n).version == 5


def test_a_repeated_run_derives_the_same_ids() -> None:
    def run() -> list[uuid.UUID]:
        incoming = context.Incoming("m", "c", "r", "")
        return [incoming.next_id() for _ in range(3)]

    assert run() == run()
    assert len(set(run())) == 3
