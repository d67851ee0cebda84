"""The filters of a list: read from the address, so that a link reproduces the view."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from uuid import UUID

from django.http import QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext as _

from outbox_core.conf import settings
from outbox_core.operations.filters import Selection
from outbox_core.states import State

TEXTS = ("type", "destination", "key", "error", "correlation")
TIMES = ("since", "until")
UNITS = {"m": 60, "h": 3600, "d": 86400}
LONGEST = 600


@dataclass(frozen=True, slots=True)
class Filters:
    """The selection that an address names, the parameters as they were given, and what was wrong with them."""

    selection: Selection
    given: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def store() -> str:
    """The database alias that the pages show: the first one that holds an outbox."""
    return settings.DATABASES[0]


def read(query: QueryDict, now: datetime) -> Filters:
    """The filters in `query`. A bad one is named in `problems` and does not filter."""
    given = {name: text for name in (*TEXTS, *TIMES) if (text := clean(query.get(name, "")))}
    problems: list[str] = []
    state = query.get("state", "")
    if state and state not in list(State):
        problems.append(
            _("state: %(actual)s, but it must be one of %(limit)s")
            % {"actual": state[:40], "limit": ", ".join(State)}
        )
        state = ""
    times: dict[str, datetime] = {}
    for name in TIMES:
        if name in given:
            if (at := moment(given[name], now)) is None:
                problems.append(
                    _(
                        "%(name)s: “%(actual)s” is no time; write 2026-01-31T14:00, or 15m, 6h or 7d for so long ago"
                    )
                    % {"name": name, "actual": given[name][:40]}
                )
            else:
                times[name] = at
    selection = Selection(
        state=state,
        type=given.get("type", ""),
        destination=given.get("destination", ""),
        key=given.get("key", ""),
        error=given.get("error", ""),
        correlation=given.get("correlation", ""),
        since=times.get("since"),
        until=times.get("until"),
    )
    return Filters(selection, given, problems)


def clean(text: str) -> str:
    """A parameter without blanks around it, of bearable length, and without NUL, which PostgreSQL refuses."""
    return text.replace("\0", "").strip()[:LONGEST]


def moment(text: str, now: datetime) -> datetime | None:
    """A point in time: ISO 8601 (in the server's zone unless it has an offset), a date, or "6h" for six hours ago."""
    if text[:-1].isdecimal() and text[-1:] in UNITS and len(text) < 8:
        return now - timedelta(seconds=int(text[:-1]) * UNITS[text[-1]])
    try:
        at = parse_datetime(text.replace(" ", "+") if "T" in text else text)
        day = None if at else parse_date(text)
    except ValueError:
        return None
    if day is not None:
        at = datetime.combine(day, time.min)
    if at is None:
        return None
    try:
        return (timezone.make_aware(at) if timezone.is_naive(at) else at).astimezone(UTC)
    except (OverflowError, ValueError):
        return None


def as_uuid(text: str) -> UUID | None:
    """The text as a UUID, or None."""
    try:
        return UUID(text.strip())
    except ValueError:
        return None
