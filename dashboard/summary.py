"""The overview's numbers, each with its hour of history and the list behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard import wording
from dashboard.series import Chart, Line
from outbox_core.conf import settings
from outbox_core.models import Duplicate
from outbox_core.operations import stats
from outbox_core.operations.stats import Point

WINDOWS = {
    "5m": (timedelta(minutes=5), timedelta(minutes=1)),
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "24h": (timedelta(days=1), timedelta(minutes=15)),
    "7d": (timedelta(days=7), timedelta(hours=2)),
}
LINES = (
    ("committed", gettext_lazy("committed")),
    ("dispatched", gettext_lazy("dispatched")),
    ("handled", gettext_lazy("handled")),
    ("duplicate", gettext_lazy("duplicates")),
)
HOUR = timedelta(hours=1)
FRESHEST = 10.0  # seconds: a step that has only begun is not divided by less


@dataclass(frozen=True, slots=True)
class Number:
    """One number: `name` is its hook in the page, `value` what is shown, `raw` the exact one."""

    name: str
    title: str
    value: str
    raw: float | int | None
    link: str
    note: str = ""
    level: str = ""
    points: Sequence[float] = field(default_factory=tuple)


def numbers(using: str, now: datetime) -> list[Number]:
    """The eight numbers of the overview."""
    counts = stats.counts(using)
    oldest = stats.oldest_pending(using)
    hour = stats.series(
        using, ("committed", "dispatched", "handled", "failed", "dead", "duplicate"), now - HOUR, now
    )
    sums = {kind: sum(p.counts.get(kind, 0) for p in hour) for kind in ("dispatched", "handled", "dead")}
    p95 = stats.latency(using, "dispatched", 0.95, now - HOUR)
    doubles = Duplicate.objects.using(using).filter(at__gte=now - HOUR).order_by()
    many, differ = (
        int(rows.values("pk")[: stats.CAP + 1].count())
        for rows in (doubles, doubles.filter(same_payload=False))
    )
    late = oldest > settings.BEHIND_AFTER
    return [
        Number(
            "oldest",
            _("Oldest pending"),
            wording.duration(oldest) if oldest else "-",
            oldest,
            _list("pending"),
            _("limit %s") % wording.duration(settings.BEHIND_AFTER),
            "bad" if late else "",
        ),
        Number(
            "pending",
            _("Pending"),
            capped(counts["pending"]),
            counts["pending"],
            _list("pending"),
            _("%s delayed") % capped(counts["scheduled"]) if counts["scheduled"] else "",
            points=_backlog(counts["pending"], hour),
        ),
        Number(
            "retrying",
            _("Retrying"),
            capped(counts["retrying"]),
            counts["retrying"],
            _list("retrying"),
            level="warn" if counts["retrying"] else "",
            points=_values(hour, "failed"),
        ),
        Number(
            "dead",
            _("Dead"),
            capped(counts["dead"]),
            counts["dead"],
            _list("dead"),
            _("+%s in 1 h") % wording.compact(sums["dead"]) if sums["dead"] else "",
            "bad" if counts["dead"] else "",
            _values(hour, "dead"),
        ),
        Number(
            "dispatched",
            _("Dispatched, 1 h"),
            wording.compact(sums["dispatched"]),
            sums["dispatched"],
            _list("dispatched", since="1h"),
            points=_values(hour, "dispatched"),
        ),
        Number(
            "latency",
            _("To confirm, p95"),
            "≤ " + wording.duration(p95) if p95 else "-",
            p95,
            _list("dispatched", since="1h"),
            _("from commit, 1 h"),
        ),
        Number(
            "handled",
            _("Handled, 1 h"),
            wording.compact(sums["handled"]),
            sums["handled"],
            reverse("outboard:workers"),
            points=_values(hour, "handled"),
        ),
        Number(
            "duplicates",
            _("Duplicates, 1 h"),
            capped(many),
            many,
            f"{reverse('outboard:duplicates')}?since=1h",
            _("%s differ") % capped(differ) if differ else "",
            "bad" if differ else "",
            _values(hour, "duplicate"),
        ),
    ]


def throughput(using: str, now: datetime, window: str) -> Chart:
    """Committed, dispatched, handled and duplicates per second over a window of `WINDOWS`."""
    span, step = WINDOWS[window]
    points = stats.series(using, [kind for kind, _title in LINES], now - span, now, step)
    widths = [max(FRESHEST, min(step.total_seconds(), (now - p.at).total_seconds())) for p in points]
    lines = [
        Line(
            kind, str(title), [p.counts.get(kind, 0) / width for p, width in zip(points, widths, strict=True)]
        )
        for kind, title in LINES
    ]
    return Chart(lines, now - span, now)


def capped(count: int) -> str:
    """A count of `stats.counts`: "10k+" stands for more than its cap."""
    return f"{wording.compact(stats.CAP)}+" if count > stats.CAP else wording.compact(count)


def _values(points: Sequence[Point], kind: str) -> list[float]:
    return [p.counts.get(kind, 0) for p in points]


def _backlog(now: int, points: Sequence[Point]) -> list[float]:
    """How many waited at the end of each minute: from today's number back through what came and what went."""
    found = [float(now)]
    for p in reversed(points[1:]):
        found.append(
            max(
                0.0,
                found[-1]
                - p.counts.get("committed", 0)
                + p.counts.get("dispatched", 0)
                + p.counts.get("dead", 0),
            )
        )
    return found[::-1]


def _list(state: str, **more: str) -> str:
    return f"{reverse('outboard:messages')}?{urlencode({'state': state, **more})}"
