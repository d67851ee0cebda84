"""The benchmarks run: a very small one, so that their code cannot rot. Figures of this size mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pair("real")

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_small_run_prints_every_figure_and_writes_it_down(tmp_path: Path) -> None:
    lines = tmp_path / "bench.jsonl"
    small = {"BENCH_MESSAGES": "200", "BENCH_ROWS": "2000", "BENCH_RUNS": "1", "BENCH_OUTPUT": str(lines)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "norecursedirs=.* build dist", "tests/benchmarks"],
        env={**os.environ, **small, "PAIR": "real"}, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = [json.loads(line) for line in lines.read_text().splitlines()]
    names = " ".join(figure["name"] for figure in figures)
    for part in (
        "bare pika, same",
        "bare pika, no",
        "one UPDATE",
        "no keys",
        "dead keys",
        "back-off",
        "hot key",
    ):
        assert part in names
    assert all(figure["ratio"] > 0 for figure in figures)
