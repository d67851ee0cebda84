"""Payloads as exact JSON text: every digit kept, the same limits on both databases.

JSON is RFC 8259. What it has no form for (NaN, Infinity, bytes, sets) is refused, and so is what PostgreSQL
or a reader elsewhere could not hold: NUL, lone surrogates, numbers of more than 4,300 digits, deep nesting.
Decimal is a number with its digits; datetime, date, time are ISO 8601; timedelta is an ISO 8601 duration.
"""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import simplejson
from django.utils.duration import duration_iso_string

from outbox_core.errors import InvalidMessage

MAX_DEPTH = 100
MAX_DIGITS = 4300  # CPython's own limit for reading and writing an int (CVE-2020-10735)


def dump(value: object, field: str = "payload") -> str:
    """The JSON text of `value`. Raises InvalidMessage, naming the path below `field`."""
    return simplejson.dumps(
        plain(value, field), use_decimal=True, allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )  # fmt: skip


def load(text: str) -> Any:
    """The value of a JSON text, with int and Decimal for numbers. Raises ValueError; RecursionError never leaves it."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def plain(value: object, field: str, depth: int = 1) -> Any:
    """`value` with only what JSON has: str, int, float, Decimal, bool, None, list, dict. Raises InvalidMessage."""
    if depth > MAX_DEPTH + 1:
        raise InvalidMessage(field[:200], f"{MAX_DEPTH} levels", "deeper")
    match value:
        case None | bool():
            return value
        case str():
            return text(value, field)
        case int():
            return _integer(value, field)
        case float():
            if not math.isfinite(value):
                raise InvalidMessage(field, "a finite number", value)
            return float(value)
        case Decimal():
            return _decimal(value, field)
        case dict():
            return {_name(k, field): plain(v, f"{field}.{k}", depth + 1) for k, v in value.items()}
        case list() | tuple():
            return [plain(v, f"{field}[{i}]", depth + 1) for i, v in enumerate(value)]
        case _:
            return _scalar(value, field)


def text(value: str, field: str) -> str:
    """`value` as a plain str. Raises InvalidMessage for NUL and for a lone surrogate."""
    if "\0" in value:
        raise InvalidMessage(field, "text without NUL", "NUL (U+0000)")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(value[error.start]):04X}"
        raise InvalidMessage(field, "text without lone surrogates", found) from None
    return str.__str__(value) if type(value) is str else str.__str__(value[:])


def _name(key: object, field: str) -> str:
    if not isinstance(key, str):
        raise InvalidMessage(field, "names that are text", f"a name of type {type(key).__name__}")
    return text(key, f"{field} (a name)")


def _integer(value: int, field: str) -> int:
    value = int(value)
    # 10^4300 has 14,285 bits; the exact count of digits is only taken near the limit.
    if value.bit_length() > 14_280 and abs(value) >= 10**MAX_DIGITS:
        raise InvalidMessage(field, f"{MAX_DIGITS} digits", "a longer number")
    return value


def _decimal(value: Decimal, field: str) -> Decimal:
    if not value.is_finite():
        raise InvalidMessage(field, "a finite number", str(value))
    if len(value.as_tuple().digits) > MAX_DIGITS:
        raise InvalidMessage(field, f"{MAX_DIGITS} digits", f"{len(value.as_tuple().digits)} digits")
    return value


def _scalar(value: object, field: str) -> str:
    match value:
        case datetime():
            if value.tzinfo is None:
                raise InvalidMessage(field, "a datetime with an offset", "a naive datetime")
            return value.isoformat()
        case date() | time():
            return value.isoformat()
        case timedelta():
            return duration_iso_string(value)
        case UUID():
            return str(value)
    raise InvalidMessage(field, "what JSON has a form for", f"an object of type {type(value).__name__}")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
