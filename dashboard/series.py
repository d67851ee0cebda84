"""Charts drawn on the server, as SVG without style or script: they need no library, and no JavaScript."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard import wording

CELL = (
    '<g><title>{}</title><rect x="{}" y="{}" width="20" height="20" rx="4" class="{}"/>'
    '<text x="{}" y="{}">{}</text></g>'
)
WIDTH, HEIGHT = 1280, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 1272, 14, 202


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: `kind` is its class in the style sheet, `points` go from oldest to newest."""

    kind: str
    title: str
    points: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one span of time."""

    lines: Sequence[Line]
    since: datetime
    until: datetime

    @property
    def empty(self) -> bool:
        return not any(any(line.points) for line in self.lines)


def spark(points: Sequence[float]) -> SafeString | str:
    """A small line with the ground filled; nothing where there is nothing to see."""
    if len(points) < 2 or not any(points):
        return ""
    top = max(points) or 1
    step = 120 / (len(points) - 1)
    path = " ".join(f"{i * step:.1f},{23 - 20 * p / top:.1f}" for i, p in enumerate(points))
    return format_html(
        '<svg class="spark" viewBox="0 0 120 26" preserveAspectRatio="none" aria-hidden="true">'
        '<polygon points="0,26 {} 120,26" fill="currentColor" opacity="0.14"/>'
        '<polyline points="{}" fill="none" stroke="currentColor" stroke-width="1.3" '
        'vector-effect="non-scaling-stroke"/></svg>',
        path,
        path,
    )


def chart(drawn: Chart) -> SafeString:
    """Lines per second over time, with a grid of round values and times that scripts put into the viewer's zone."""
    top = round_up(max((max(line.points, default=0) for line in drawn.lines), default=0))
    return format_html(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>',
        WIDTH,
        HEIGHT,
        summary(drawn),
        _grid(top),
        _times(drawn),
        format_html_join(
            "",
            '<polyline class="s-{}" points="{}"/>',
            [(line.kind, _path(line.points, top)) for line in drawn.lines],
        ),
    )


def summary(drawn: Chart) -> str:
    """The chart in words, for who does not see it: the last and the highest value of each line."""
    parts = [
        _("%(title)s: now %(now)s, at most %(most)s")
        % {"title": x.title, "now": wording.rate(x.points[-1]), "most": wording.rate(max(x.points))}
        for x in drawn.lines
        if x.points
    ]
    return "; ".join(parts)


def round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten, at least 1."""
    if value <= 1:
        return 1
    power = 10 ** math.floor(math.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value))


def _path(points: Sequence[float], top: float) -> str:
    step = (RIGHT - LEFT) / max(1, len(points) - 1)
    return " ".join(
        f"{LEFT + i * step:.1f},{BOTTOM - (BOTTOM - TOP) * p / top:.1f}" for i, p in enumerate(points)
    )


def _grid(top: float) -> SafeString:
    rows = [(BOTTOM - (BOTTOM - TOP) * share, wording.rate(top * share)) for share in (0, 0.5, 1)]
    return format_html_join(
        "",
        f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{{}}" y2="{{}}"/>'
        f'<text x="{LEFT - 6}" y="{{}}" text-anchor="end">{{}}</text>',
        [(f"{y:.0f}", f"{y:.0f}", f"{y + 4:.0f}", text) for y, text in rows],
    )


def _times(drawn: Chart) -> SafeString:
    span = drawn.until - drawn.since
    pattern = "%H:%M" if span <= timedelta(days=1) else "%d %b"
    marks = [(LEFT + (RIGHT - LEFT) * i / 4, drawn.since + span * i / 4) for i in range(5)]
    anchors = ("start", "middle", "middle", "middle", "end")
    return format_html_join(
        "",
        '<text x="{}" y="222" text-anchor="{}" data-axis="{}">{}</text>',
        [
            (f"{x:.0f}", a, at.isoformat(), timezone.localtime(at).strftime(pattern))
            for (x, at), a in zip(marks, anchors, strict=True)
        ],
    )


def partition_map(owners: Sequence[tuple[str, int | None]], columns: int = 16) -> SafeString:
    """The 64 partitions as cells, each with its owner's colour and letter; `owners` are (name, index or None)."""
    cells = []
    for number, (name, index) in enumerate(owners):
        x, y = number % columns * 22 + 1, number // columns * 22 + 1
        kind = "free" if index is None else f"o{index % 8}"
        letter = "!" if index is None else chr(65 + index % 26)
        title = _("Partition %(n)d: %(owner)s") % {"n": number, "owner": name or _("no owner")}
        cells.append((title, x, y, kind, x + 10, y + 14, letter))
    rows = math.ceil(len(owners) / columns)
    free = sum(index is None for _name, index in owners)
    return format_html(
        '<svg class="map" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>',
        columns * 22,
        rows * 22,
        _("%(n)d partitions, %(free)d without an owner") % {"n": len(owners), "free": free},
        format_html_join("", CELL, cells),
    )
