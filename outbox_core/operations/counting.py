"""Counts that stop: no page counts a big table."""

from __future__ import annotations

from typing import Any

CAP = 10_000


def capped(rows: Any, cap: int = CAP) -> int:
    """How many rows there are, counted up to `cap`: cap + 1 stands for more."""
    return int(rows.values("pk")[: cap + 1].count())
