"""Figures as ratios: two things measured in turns in one run, each at least BENCH_RUNS times, and their medians.

Seconds depend on the machine, ratios much less. At the end there is a table, and the same as JSON lines in the file
that BENCH_OUTPUT names (else in the temporary folder).
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

RUNS = int(os.environ.get("BENCH_RUNS", "5"))
OUTPUT = Path(os.environ.get("BENCH_OUTPUT") or Path(tempfile.gettempdir()) / "outboard-bench.jsonl")


@dataclass(frozen=True, slots=True)
class Figure:
    """`ratio` is the median of the ratios of each pair of runs; `least` and `most` are its spread. `ours` and `other`
    are medians in `unit`. `wanted` says what the ratio should be, as text such as ">= 0.5"."""

    name: str
    ours: float
    other: float
    unit: str
    ratio: float
    least: float
    most: float
    wanted: str = ""
    reached: bool = True
    facts: dict[str, Any] = field(default_factory=dict)


class Board:
    """Collects the figures of a run."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.missing: list[str] = []

    def compare(
        self, name: str, ours: Callable[[], float], other: Callable[[], float], unit: str, *, wanted: str = "",
        **facts: Any,
    ) -> Figure:  # fmt: skip
        """Measure both in turns. Each returns its figure in `unit` (a rate, or a time)."""
        mine, theirs = [], []
        for _ in range(RUNS):
            mine.append(ours())
            theirs.append(other())
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        ratio = statistics.median(ratios)
        figure = Figure(
            name, statistics.median(mine), statistics.median(theirs), unit, ratio, min(ratios), max(ratios),
            wanted, _reached(ratio, wanted), facts,
        )  # fmt: skip
        self.figures.append(figure)
        return figure

    def note(self, sentence: str) -> None:
        """Say what could not be measured."""
        self.missing.append(sentence)


def _reached(ratio: float, wanted: str) -> bool:
    sign, _, bound = wanted.partition(" ")
    return {"": True, ">=": ratio >= float(bound or 0), "<=": ratio <= float(bound or 0)}[sign]


BOARD = Board()


@pytest.fixture
def board() -> Board:
    return BOARD


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table and the JSON lines."""
    say = terminalreporter.write_line
    if BOARD.figures:
        say("")
        say(f"{'figure':<52} {'ours':>10} {'other':>10} {'unit':<6} {'ratio':>7} {'spread':>15}  wanted")
    for f in BOARD.figures:
        mark = "" if f.reached else "  NOT REACHED"
        say(
            f"{f.name:<52} {f.ours:>10,.4g} {f.other:>10,.4g} {f.unit:<6} {f.ratio:>7.2f} "
            f"{f.least:>7.2f}-{f.most:<7.2f}  {f.wanted}{mark}"
        )
    for sentence in BOARD.missing:
        say(f"Not measured: {sentence}")
    if BOARD.figures:
        machine = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "python": platform.python_version(),
                   "cores": os.cpu_count(), "runs": RUNS}  # fmt: skip
        with OUTPUT.open("a") as lines:
            for f in BOARD.figures:
                lines.write(json.dumps({**asdict(f), **machine}) + "\n")
        say(f"JSON lines: {OUTPUT}")
