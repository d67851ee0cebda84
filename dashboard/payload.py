"""A payload as people read it: every digit kept, indented, masked by rule, escaped, and cut where it is too long.

Rendered on the server: a browser's JSON would round 9007199254740993, and a payload of 1 MiB would freeze the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from outbox_core import jsontext
from outbox_core.operations import masking

BUDGET = 64 * 1024  # characters that a page shows before it says that there is more
LONG_TEXT = 4_000  # characters of one text


@dataclass(frozen=True, slots=True)
class Rendered:
    """The markup; whether it was cut; how many values are masked."""

    html: SafeString
    cut: bool
    masked: int


class _Full(Exception):
    """The budget is spent."""


class _Writer:
    """Writes a JSON value as markup; only what passes `text` may hold anything that a message brought."""

    def __init__(self, budget: int) -> None:
        self.left, self.masked, self.parts = budget, 0, list[str]()

    def text(self, text: str, kind: str = "") -> None:
        self.left -= len(text)
        escaped = escape(text)
        self.parts.append(f'<span class="{kind}">{escaped}</span>' if kind else escaped)
        if self.left < 0:
            raise _Full

    def value(self, value: Any, depth: int = 0) -> None:
        if value is masking.MASKED:
            self.masked += 1
            self.text(_("masked"), "masked")
        elif isinstance(value, dict) and value:
            self._items("{", "}", list(value.items()), depth, self._pair)
        elif isinstance(value, list) and value:
            self._items("[", "]", value, depth, self.value)
        else:
            self._scalar(value)

    def _items(
        self, begin: str, end: str, items: list[Any], depth: int, write: Callable[[Any, int], None]
    ) -> None:
        self.text(begin)
        for number, item in enumerate(items):
            self.text(",\n" if number else "\n")
            self.text("  " * (depth + 1))
            write(item, depth + 1)
        self.text("\n" + "  " * depth + end)

    def _pair(self, pair: tuple[str, Any], depth: int) -> None:
        self.text(jsontext.dump(pair[0]), "k")
        self.text(": ")
        self.value(pair[1], depth)

    def _scalar(self, value: Any) -> None:
        text = jsontext.dump(value)
        kind = (
            "str" if isinstance(value, str) else "lit" if value is None or isinstance(value, bool) else "num"
        )
        if not isinstance(value, int | Decimal | str) or isinstance(value, bool):
            self.text(text, kind if isinstance(value, bool | None) else "")
        elif isinstance(value, str) and len(text) > LONG_TEXT:
            self.text(text[:LONG_TEXT], kind)
            more = len(text) - LONG_TEXT
            self.text(" " + ngettext("… %d more character", "… %d more characters", more) % more, "masked")
        else:
            self.text(text, kind)


def render(value: Any, budget: int = BUDGET) -> Rendered:
    """A JSON value (of `masking.mask`) as markup of at most about `budget` characters."""
    writer, cut = _Writer(budget), False
    try:
        writer.value(value)
    except _Full:
        cut = True
    # Every part was escaped by `_Writer.text`, which nothing else writes to.
    return Rendered(mark_safe("".join(writer.parts)), cut, writer.masked)  # noqa: S308
