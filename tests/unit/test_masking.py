"""Masking by rule."""

from __future__ import annotations

from decimal import Decimal

import pytest

from outbox_core.operations.masking import MASKED, mask, plain

PAYLOAD = {
    "email": "a@b.c", "user": {"email": "d@e.f", "password": "p", "deep": [{"password": ["x", {"y": 1}]}]},
    "lines": [{"card": "4111", "n": Decimal("1.10")}, {"card": None}], "n": 9007199254740993,
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        ("email", [("email",)]),
        ("**.email", [("email",), ("user", "email")]),
        ("**.password", [("user", "password"), ("user", "deep", 0, "password")]),
        ("user.*", [("user", "email"), ("user", "password"), ("user", "deep")]),
        ("user", [("user",)]),
        ("lines.card", [("lines", 0, "card"), ("lines", 1, "card")]),
        ("**", [("email",), ("user",), ("lines",), ("n",)]),
        ("nothing.here", []), ("email.inner", []), ("Email", []),
    ],
)  # fmt: skip
def test_a_rule_masks_exactly_what_it_names(rule: str, gone: list[tuple[object, ...]]) -> None:
    def paths(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        if value is MASKED:
            return [path]
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        return [p for k, inner in items for p in paths(inner, (*path, k))]

    assert sorted(map(repr, paths(mask(PAYLOAD, [rule])))) == sorted(map(repr, gone))


def test_the_rest_stays_as_it_is_and_the_value_itself_is_left_alone() -> None:
    masked = plain(mask(PAYLOAD, ["email", "lines.card"]))
    assert masked == {
        **PAYLOAD, "email": "masked", "lines": [{"card": "masked", "n": Decimal("1.10")}, {"card": "masked"}],
    }  # fmt: skip
    assert PAYLOAD["email"] == "a@b.c"


@pytest.mark.parametrize("value", [None, 1, "email", [], [1, ["email"]], {}])
def test_what_has_no_names_is_not_masked(value: object) -> None:
    assert mask(value, ["email", "**.password"]) == value


def test_the_rules_come_from_the_settings(settings: object) -> None:
    outbox = settings.OUTBOX  # type: ignore[attr-defined]
    settings.OUTBOX = {**outbox, "MASK": ["n"]}  # type: ignore[attr-defined]
    assert plain(mask({"n": 1, "email": "a"})) == {"n": "masked", "email": "a"}
