"""How long to wait: durations as arguments, and full-jitter back-off.

Full jitter is from "Exponential Backoff and Jitter" (AWS Architecture Blog, 2015): of the schemes
compared there it needs the fewest calls, since it spreads the retries of many clients evenly.
"""

from __future__ import annotations

import random
from datetime import timedelta

from outbox_core.errors import InvalidMessage

LONGEST = 10 * 365 * 86400.0


def seconds(value: object, field: str) -> float:
    """A duration given as seconds or a timedelta, in seconds. Raises InvalidMessage outside 0 s to 10 years."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidMessage(field, "seconds or a timedelta", type(value).__name__)
    if not 0 <= value <= LONGEST:
        raise InvalidMessage(field, "0 s to 10 years", value)
    return float(value)


def delay(failures: int, base: float, cap: float, rng: random.Random) -> float:
    """Seconds to wait after the `failures`-th failure, counted from 1: uniform up to base * 2^(failures-1), capped."""
    ceiling = cap if failures > 64 else min(cap, base * 2 ** (failures - 1))
    return rng.uniform(0, ceiling)
