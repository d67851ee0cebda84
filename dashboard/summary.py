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
from outbox_core.operations import counting, stats, undone
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
    drawn: str = ""  # what the points are


def numbers(using: str, now: datetime) -> list[Number]:
    """The eight numbers of the overview."""
    kinds = ("committed", "dispatched", "handled", "failed", "dead", "duplicate")
    hour = stats.series(using, kinds, now - HOUR, now)
    return [*_standing(using, hour), *_flowing(using, hour, now)]


def _standing(using: str, hour: Sequence[Point]) -> list[Number]:
    """What stands in the queue, or was given up."""
    counts = stats.counts(using)
    due, aside = stats.waits(using)
    # What waits behind a dead message of its key waits for a person: that is not the dispatcher being behind.
    late = "bad" if due > settings.BEHIND_AFTER else "warn" if aside > settings.BEHIND_AFTER else ""
    delayed, dead = counts["scheduled"], sum(_values(hour, "dead"))
    oldest = Number(
        "oldest", _("Oldest pending"), wording.duration(max(due, aside)) if due or aside else "-", max(due, aside),
        _list("pending"), note=_("limit %s") % wording.duration(settings.BEHIND_AFTER), level=late,
    )  # fmt: skip
    pending = Number(
        "pending", _("Pending"), capped(counts["pending"]), counts["pending"], _list("pending"),
        note=_("%s delayed") % capped(delayed) if delayed else "",
        points=_values(hour, "committed"), drawn=_("committed per minute"),
    )  # fmt: skip
    failing, given_up_there = _at_consumers(using)
    retrying = Number(
        "retrying", _("Retrying"), capped(counts["retrying"]), counts["retrying"],
        _needs("retrying", own=counts["retrying"], there=failing),
        note=_("%s at consumers") % capped(failing) if failing else "",
        level="warn" if counts["retrying"] or failing else "",
        points=_values(hour, "failed"), drawn=_("failed per minute"),
    )  # fmt: skip
    given_up = Number(
        "dead", _("Dead"), capped(counts["dead"]), counts["dead"],
        _needs("dead", own=counts["dead"], there=given_up_there),
        note=", ".join(filter(None, [
            _("+%s in 1 h") % wording.compact(dead) if dead else "",
            _("%s at consumers") % capped(given_up_there) if given_up_there else "",
        ])), level="bad" if counts["dead"] or given_up_there else "",
        points=_values(hour, "dead"), drawn=_("given up per minute"),
    )  # fmt: skip
    return [oldest, pending, retrying, given_up]


def _needs(state: str, *, own: int, there: int) -> str:
    """The list of a state; if nothing stands there, but something at consumers, what says so on the same page."""
    return _list(state) if own or not there else "#needs"


def _at_consumers(using: str) -> tuple[int, int]:
    """How many messages consumers try again, and how many they gave up or could not read; capped."""
    return undone.count(using, *undone.TRIED), undone.count(using, *undone.GIVEN_UP)


def _flowing(using: str, hour: Sequence[Point], now: datetime) -> list[Number]:
    """What went through in the last hour."""
    sent, handled = sum(_values(hour, "dispatched")), sum(_values(hour, "handled"))
    p95 = stats.latency(using, "dispatched", 0.95, now - HOUR)
    # From the ledger: publish() writes no tally for a producer's duplicate.
    seen = Duplicate.objects.using(using).filter(at__gte=now - HOUR)
    many, differ = counting.capped(seen), counting.capped(seen.filter(same_payload=False))
    recent = _list("dispatched", since="1h")
    dispatched = Number(
        "dispatched", _("Dispatched, 1 h"), wording.compact(sent), sent, recent,
        points=_values(hour, "dispatched"), drawn=_("dispatched per minute"),
    )  # fmt: skip
    latency = Number(
        "latency", _("To confirm, p95"), "≤ " + wording.duration(p95) if p95 else "-", p95, recent,
        note=_("from commit, 1 h"),
    )  # fmt: skip
    done = Number(
        "handled", _("Handled, 1 h"), wording.compact(handled), handled, reverse("outboard:workers"),
        points=_values(hour, "handled"), drawn=_("handled per minute"),
    )  # fmt: skip
    duplicates = Number(
        "duplicates", _("Duplicates, 1 h"), capped(many), many, f"{reverse('outboard:duplicates')}?since=1h",
        note=_("%s differ") % capped(differ) if differ else "", level="bad" if differ else "",
        points=_values(hour, "duplicate"), drawn=_("duplicates per minute"),
    )  # fmt: skip
    return [dispatched, latency, done, duplicates]


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
    return f"{wording.compact(counting.CAP)}+" if count > counting.CAP else wording.compact(count)


def _values(points: Sequence[Point], kind: str) -> list[int]:
    return [p.counts.get(kind, 0) for p in points]


def _list(state: str, **more: str) -> str:
    return f"{reverse('outboard:messages')}?{urlencode({'state': state, **more})}"
