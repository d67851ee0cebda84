"""Masking by rule: what `OUTBOX["MASK"]` names never reaches a template, an answer or the socket.

A rule is a path of names below the payload, joined by dots; `*` stands for any one name, `**` for any number of
them, and the items of a list count as the list itself: `email`, `lines.card`, `**.password`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outbox_core.conf import settings


class _Masked:
    """What stands in the place of a masked value."""

    def __repr__(self) -> str:
        return "masked"


MASKED = _Masked()


def masked(value: Any) -> Any:
    """A copy of a JSON value with `MASKED` in place of what the rules name."""
    return _mask(value, [rule.split(".") for rule in settings.MASK])


def plain(value: Any) -> Any:
    """`masked` as JSON has it: the text "masked" in those places."""
    if value is MASKED:
        return "masked"
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def _mask(value: Any, rules: Sequence[Sequence[str]]) -> Any:
    if isinstance(value, list):
        return [_mask(inner, rules) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, inner in value.items():
        left = [rest for rule in rules for rest in _below(rule, name)]
        found[name] = MASKED if any(not rest for rest in left) else _mask(inner, left)
    return found


def _below(rule: Sequence[str], name: str) -> list[Sequence[str]]:
    """What is left of a rule below `name`; empty at its end."""
    if not rule:
        return []
    if rule[0] == "**":
        return [rule, *_below(rule[1:], name)]
    return [rule[1:]] if rule[0] in ("*", name) else []
