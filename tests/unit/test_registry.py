"""Who handles what: registration, its errors, and topic patterns."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.inbox import registry
from outbox_core.inbox.registry import matches, subscribe, subscriptions


@pytest.fixture
def consumer() -> Iterator[str]:
    name = f"consumer-{uuid.uuid4().hex[:12]}"
    yield name
    registry.forget(name)


def handle(message: Any) -> None: ...


def handle_too(message: Any) -> None: ...


def test_the_decorator_gives_the_function_back_and_its_queue_follows(consumer: str) -> None:
    assert subscribe("a.b", "c.#", consumer=consumer, prefetch=7)(handle) is handle
    subscription = subscriptions()[consumer]
    assert subscription.types == ("a.b", "c.#")
    assert subscription.function is handle
    (queue,) = registry.queues([consumer])
    assert (queue.name, queue.patterns, queue.prefetch, queue.single_active) == (
        consumer,
        ("a.b", "c.#"),
        7,
        False,
    )
    assert queue in registry.queues()


def test_several_functions_share_a_consumer_and_an_exact_type_goes_first(consumer: str) -> None:
    subscribe("orders.*", consumer=consumer, ordered=True)(handle)
    subscribe("orders.paid", consumer=consumer, ordered=True)(handle_too)
    subscription = subscriptions()[consumer]
    assert subscription.handler_for("orders.started") is handle
    assert subscription.handler_for("orders.paid") is handle_too
    assert subscription.handler_for("orders.paid.twice") is None
    assert subscription.function is None


def test_without_a_prefetch_the_setting_holds(consumer: str, settings: Any) -> None:
    subscribe("a", consumer=consumer)(handle)
    settings.OUTBOX = {**settings.OUTBOX, "PREFETCH": 3}
    assert subscriptions()[consumer].queue.prefetch == 3


@pytest.mark.parametrize(
    ("types", "options", "error", "text"),
    [
        (("a",), {"consumer": "x" * 256}, ValueError, "consumer is 256 bytes long, but the limit is 255"),
        (("a",), {"consumer": "é" * 128}, ValueError, "consumer is 256 bytes"),
        (("a",), {"consumer": ""}, ValueError, "not empty"),
        (("a",), {"consumer": "a\0b"}, ValueError, "printable"),
        (("a",), {"consumer": "amq.gen"}, ValueError, "amq."),
        (("a",), {"consumer": 5}, TypeError, "consumer must be text, not int"),
        ((), {}, ValueError, "names no type"),
        (("",), {}, ValueError, "not empty"),
        (("a" * 256,), {}, ValueError, "type is 256 bytes long"),
        (("a.b*",), {}, ValueError, "must stand alone"),
        (("a.##",), {}, ValueError, "must stand alone"),
        (("a\n",), {}, ValueError, "printable"),
        ((handle,), {}, TypeError, "is @subscribe called"),
        (("a",), {"group": 0}, ValueError, "group is 0, but must be 1 to 1000"),
        (("a",), {"prefetch": 70_000}, ValueError, "prefetch is 70000"),
        (("a",), {"prefetch": "5"}, TypeError, "prefetch must be a whole number, not str"),
        (("a",), {"group": True}, TypeError, "group must be a whole number, not bool"),
    ],
)
def test_a_bad_registration_is_refused_and_leaves_nothing(
    consumer: str, types: tuple[Any, ...], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    before = subscriptions()
    with pytest.raises(error, match=text.replace("*", r"\*")):
        subscribe(*types, **{"consumer": consumer, **options})(handle)
    assert subscriptions() == before


def test_the_same_type_twice_for_one_consumer_is_refused_whole(consumer: str) -> None:
    subscribe("a", "b", consumer=consumer)(handle)
    with pytest.raises(
        ValueError, match=r'already handles "b" with .*handle; one function per consumer and type'
    ):
        subscribe("c", "b", consumer=consumer)(handle_too)
    assert subscriptions()[consumer].types == ("a", "b")


@pytest.mark.parametrize(
    "options", [{"ordered": True}, {"discard_stale": True}, {"using": "other"}, {"prefetch": 2}]
)
def test_the_options_of_one_consumer_must_agree(consumer: str, options: dict[str, Any]) -> None:
    subscribe("a", consumer=consumer)(handle)
    with pytest.raises(ValueError, match=f"was subscribed with {next(iter(options))}="):
        subscribe("b", consumer=consumer, **options)(handle_too)


def test_a_name_of_255_bytes_is_taken() -> None:
    name = "é" * 127 + "x"
    try:
        subscribe("a", consumer=name)(handle)
        assert name in subscriptions()
    finally:
        registry.forget(name)


WORDS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6)
PARTS = st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=6)


def slow_match(parts: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """The definition, tried out: # takes none, or one more word."""
    if not parts:
        return not words
    if parts[0] == "#":
        return slow_match(parts[1:], words) or (bool(words) and slow_match(parts, words[1:]))
    return bool(words) and parts[0] in ("*", words[0]) and slow_match(parts[1:], words[1:])


@given(PARTS, WORDS)
def test_patterns_match_as_their_definition_says(parts: list[str], words: list[str]) -> None:
    pattern, type_ = ".".join(parts), ".".join(words)
    as_words: Callable[[str], tuple[str, ...]] = lambda text: tuple(text.split(".")) if text else ()  # noqa: E731
    assert matches(pattern, type_) is slow_match(as_words(pattern), as_words(type_))


@pytest.mark.parametrize(
    ("pattern", "type_", "expected"),
    [
        ("orders.*", "orders.paid", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.paid.twice", False),
        ("orders.#", "orders", True),
        ("orders.#", "orders.paid.twice", True),
        ("#", "anything.at.all", True),
        ("#.paid", "orders.paid", True),
        ("*.paid", "paid", False),
        ("orders", "Orders", False),
    ],
)
def test_patterns_by_example(pattern: str, type_: str, expected: bool) -> None:
    assert matches(pattern, type_) is expected


def test_a_pattern_of_many_hashes_does_not_explode() -> None:
    pattern = ".".join(["#", "a"] * 60)
    assert not matches(pattern, ".".join(["a"] * 59 + ["b"]))


def test_a_method_or_partial_can_be_a_handler(consumer: str) -> None:
    subscribe("a", consumer=consumer)(functools.partial(handle))
    with pytest.raises(ValueError, match="already handles"):
        subscribe("a", consumer=consumer)(handle)
