"""Fixtures for every test. The pair under test is named by `PAIR` (see tests/servers.py).

Each test has an exchange of its own, a clean database, and on RabbitMQ a virtual host of this run's own. What a
test starts ends with it.
"""

from __future__ import annotations

import itertools
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import DatabaseError, connection
from django.test import override_settings

from tests import processes, servers, spawning
from tests.private_servers import PostgreSQL, RabbitMQ
from tests.processes import Process, listening_socket
from tests.vhosts import VirtualHost

pytest_plugins = ["tests.session", "tests.browsers"]

ROOT = Path(__file__).resolve().parent.parent
USES_DATABASE = {
    "db",
    "transactional_db",
    "spawn",
    "private_postgres",
    "live_server_daphne",
    "live_server_without_socket",
}


@pytest.fixture(scope="session")
def pair() -> str:
    """`embedded` (SQLite and loopback) or `real` (PostgreSQL and RabbitMQ)."""
    return str(django_settings.PAIR)


@pytest.fixture(scope="session")
def scale() -> Callable[[int], int]:
    """`scale(n)`: n times the environment's SCALE (0.1 unless set), at least 1."""
    return lambda n: max(1, round(n * float(os.environ.get("SCALE", "0.1"))))


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """`wait_until(condition, timeout=10, every=0.05)`: the condition's first true value."""
    return processes.wait_until


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """pytest-django's database; at the end, sessions that a killed process has left on it are closed."""
    yield
    with django_db_blocker.unblock():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )


@pytest.fixture(scope="session")
def amqp_vhost(pair: str) -> Iterator[VirtualHost | None]:
    """The virtual host of this run; None on the embedded pair."""
    if pair == "embedded":
        yield None
        return
    host = VirtualHost(django_settings.OUTBOX["AMQP_URL"])
    try:
        host.make()
        yield host
    finally:
        host.remove()


@pytest.fixture(autouse=True)
def exchange(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of this test's own exchange, set in `settings.OUTBOX`; removed afterwards with its queues."""
    if USES_DATABASE & set(request.fixturenames) - {"db"}:
        request.getfixturevalue("transactional_db")
    name = f"events-{uuid.uuid4().hex[:12]}"
    changed = {**django_settings.OUTBOX, "EXCHANGE": name}
    touches_broker = "unit" not in request.path.parts
    host = request.getfixturevalue("amqp_vhost") if touches_broker else None
    if host is not None:
        changed["AMQP_URL"] = host.url
    with override_settings(OUTBOX=changed):
        yield name
        if host is not None:
            host.tidy(name, _declared_queues(request))


def _declared_queues(request: pytest.FixtureRequest) -> set[str]:
    """The queues of this process's subscriptions, and those written down in the test's database."""
    from outbox_core.inbox.registry import subscriptions
    from outbox_core.models import Binding

    names = set(subscriptions())
    if request.node.get_closest_marker("django_db") or USES_DATABASE & set(request.fixturenames):
        with suppress(DatabaseError):  # the test broke its transaction on purpose
            names.update(Binding.objects.values_list("queue", flat=True))
    return names


@pytest.fixture
def amqp(exchange: str) -> str:
    """The AMQP URL; empty on the embedded pair."""
    return str(django_settings.OUTBOX.get("AMQP_URL", ""))


@pytest.fixture
def outbox_settings(exchange: str) -> Iterator[Callable[..., None]]:
    """`outbox_settings(LEASE=1, ...)`: other settings for the rest of the test, in what it spawns too."""
    entered: list[override_settings] = []

    def change(**values: Any) -> None:
        override = override_settings(OUTBOX={**django_settings.OUTBOX, **values})
        override.enable()
        entered.append(override)

    yield change
    for override in reversed(entered):
        override.disable()


@pytest.fixture
def spawn(transactional_db: None, exchange: str, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """`spawn(command, *args, env={})`: a `manage.py` process on the test's database, broker and settings.

    They are taken as they are at the call. The process is killed at the end of the test. `env` adds to its
    environment, `TEST_APPS` in it to INSTALLED_APPS.
    """
    started: list[Process] = []
    numbers = itertools.count(1)

    def start(command: str, *args: Any, env: dict[str, str] | None = None) -> Process:
        process = Process(
            [sys.executable, str(ROOT / "manage.py"), command, *map(str, args)],
            env={**spawning.environment(), **(env or {})},
            log=tmp_path / f"{next(numbers)}-{command}.log",
            cwd=ROOT,
        )
        started.append(process)
        return process

    yield start
    for process in reversed(started):
        process.kill()
        # pytest shows this with a test that failed.
        print(f"\n--- {process}, exit code {process.returncode} ---\n{process.output[-4000:]}")


@pytest.fixture
def live_server_daphne(transactional_db: None, exchange: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a daphne on the test's database, broker and settings, without a slash at its end."""
    with _daphne("application", tmp_path) as url:
        yield url


@pytest.fixture
def live_server_without_socket(transactional_db: None, exchange: str, tmp_path: Path) -> Iterator[str]:
    """The same, of a project whose asgi.py has no websocket route."""
    with _daphne("pages", tmp_path) as url:
        yield url


@contextmanager
def _daphne(application: str, tmp_path: Path) -> Iterator[str]:
    with listening_socket() as listener:
        url = "http://{}:{}".format(*listener.getsockname())
        process = Process(
            [sys.executable, "-m", "daphne", "--fd", str(listener.fileno()), "--websocket_timeout", "-1",
             f"dashboard.project.asgi:{application}"],
            env=spawning.environment(), log=tmp_path / "daphne.log", cwd=ROOT, pass_fds=[listener.fileno()],
        )  # fmt: skip
        try:
            processes.wait_until(
                lambda: processes.get_status(f"{url}/-/live") == 200 or not process.running, 20
            )
            assert process.running, process.output
            yield url
        finally:
            process.kill()
            print(f"\n--- daphne, exit code {process.returncode} ---\n{process.output[-4000:]}")


@pytest.fixture
def private_rabbitmq(pair: str, outbox_settings: Callable[..., None], tmp_path: Path) -> Iterator[RabbitMQ]:
    """A RabbitMQ node of this test's own, running; the test's settings lead to it. `.stop() .start() .freeze() .url`"""
    if pair != "real":
        pytest.skip("a private RabbitMQ belongs to PAIR=real")
    _need(RabbitMQ.missing())
    node = RabbitMQ(tmp_path / "rabbitmq")
    try:
        node.start()
        outbox_settings(AMQP_URL=node.url)
        yield node
    finally:
        node.remove()


@pytest.fixture
def private_postgres(pair: str, transactional_db: None) -> Iterator[PostgreSQL]:
    """A PostgreSQL server of this test's own, running and migrated; the default connection, and so `spawn`, uses it."""
    if pair != "real":
        pytest.skip("a private PostgreSQL belongs to PAIR=real")
    _need(PostgreSQL.missing())
    # Not in tmp_path, which is closed to the user `postgres`.
    server = PostgreSQL(servers.directory() / f"postgres-{uuid.uuid4().hex[:8]}")
    before = dict(connection.settings_dict)
    try:
        server.start()
        connection.close()
        connection.settings_dict.update(
            HOST="127.0.0.1", PORT=server.port, USER="postgres", PASSWORD="", NAME="postgres"
        )
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        yield server
    finally:
        connection.close()
        connection.settings_dict.update(before)
        server.remove()


def _need(problem: str) -> None:
    if problem:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"No private server {problem}.")
