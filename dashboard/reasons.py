"""A reason as pages tell it, and the small words that its sentences are made of."""

from __future__ import annotations

from dataclasses import dataclass

from outbox_core.operations.inspect import EARLIER_CAP
from outbox_core.operations.words import gist


@dataclass(frozen=True, slots=True)
class Why:
    """`text` is the sentence, `detail` what follows from it, `advice` what to do; `level` info, ok, warn or bad.

    `link` names the message that it waits for, if any.
    """

    level: str
    text: str
    detail: str = ""
    advice: str = ""
    link: str = ""


def first_line(error: str) -> str:
    """What an error says, without what it says beyond it."""
    return gist(error)[0]


def capped(n: int, cap: int = EARLIER_CAP) -> str:
    """A count that stops at a cap: "1,000+" for more."""
    return f"{cap:,}+" if n > cap else f"{n:,}"
