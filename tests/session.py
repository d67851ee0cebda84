"""How a run of the tests goes: in a random order (repeated by `--seed`), on one pair, tidy when it is ended early."""

from __future__ import annotations

import os
import random
import signal
from types import FrameType

import pytest
from django.conf import settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="the seed of the order of the tests")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pair(name): the test makes sense on this pair only: embedded or real")
    # The workers of pytest-xdist must collect in the same order, and inherit the environment.
    if (seed := config.getoption("seed")) is not None:
        os.environ["TEST_SEED"] = str(seed)
    os.environ.setdefault("TEST_SEED", str(random.randrange(1_000_000)))
    # So that `timeout` and CI leave no database, virtual host or process behind.
    signal.signal(signal.SIGTERM, _end)


def _end(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt(f"signal {signum}")


def pytest_report_header(config: pytest.Config) -> str:
    return f"pair: {settings.PAIR}, order: --seed {os.environ['TEST_SEED']}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle files and the tests in each, leave out the other pair's, skip all where a server is missing."""
    chooser = random.Random(os.environ["TEST_SEED"])
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(str(item.path), []).append(item)
    files = list(by_file.values())
    for tests in files:
        chooser.shuffle(tests)
    chooser.shuffle(files)
    kept, left_out = [], []
    for item in (i for tests in files for i in tests):
        marker = item.get_closest_marker("pair")
        (kept if marker is None or marker.args == (settings.PAIR,) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = kept
    if settings.MISSING_SERVER:
        without_server(items)


def without_server(items: list[pytest.Item]) -> None:
    if os.environ.get("CI") == "true":
        pytest.exit(settings.MISSING_SERVER, returncode=1)
    for item in items:
        item.add_marker(pytest.mark.skip(reason=settings.MISSING_SERVER))
