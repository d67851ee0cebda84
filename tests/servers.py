"""The servers of the pair under test: named by the environment, found running, or started for this run.

`embedded` is a SQLite file and the loopback broker. `real` is PostgreSQL and RabbitMQ: those that TEST_DATABASE_URL
and TEST_AMQP_URL name, else those that answer on their usual ports, else private ones from installed programs. On a
shared server the tests touch only databases, virtual hosts and names of their own.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import psycopg

from tests.private_servers import PostgreSQL, RabbitMQ

USUAL_DATABASE = "postgres://postgres@127.0.0.1:5432/postgres"
USUAL_AMQP = "amqp://guest:guest@127.0.0.1:5672/"
RUN = uuid.uuid4().hex[:10]  # in the name of everything that this process makes on a shared server


@dataclass(frozen=True)
class Found:
    """Where the servers are; `missing` says in one sentence what could not be found."""

    database_url: str
    amqp_url: str
    missing: str = ""


def pair() -> str:
    """`embedded` (default) or `real`."""
    name = os.environ.get("PAIR", "embedded")
    if name not in ("embedded", "real"):
        raise ValueError(f"PAIR must be embedded or real, not {name!r}")
    return name


def find(pair: str) -> Found:
    """The servers for `pair`; private ones are started here and end with this process."""
    embedded = f"sqlite:///{directory() / 'outboard.sqlite3'}"
    if pair == "embedded":
        return Found(embedded, "")
    try:
        database, amqp = _database(), _amqp()
    except LookupError as error:
        return Found(embedded, "", str(error))
    # The workers of pytest-xdist use what their parent found, and start nothing.
    os.environ.update(TEST_DATABASE_URL=database, TEST_AMQP_URL=amqp)
    return Found(database, amqp)


def directory() -> Path:
    """A folder of this process, removed at its end."""
    global _directory
    if _directory is None:
        _directory = Path(tempfile.mkdtemp(prefix="outboard-test-"))
        atexit.register(shutil.rmtree, _directory, ignore_errors=True)
    return _directory


_directory: Path | None = None


def own_database_name(config: dict[str, Any]) -> str:
    """The name of this process's own test database."""
    if config["ENGINE"] == "django.db.backends.sqlite3":
        return str(directory() / "test.sqlite3")
    name = f"outboard_test_{RUN}"
    atexit.register(_drop, name)
    return name


def _drop(name: str) -> None:
    """The test runner does this too, unless the run was ended while it made the database."""
    with psycopg.connect(os.environ["TEST_DATABASE_URL"], autocommit=True, connect_timeout=3) as session:
        session.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _database() -> str:
    if url := os.environ.get("TEST_DATABASE_URL"):
        return url
    if database_answers(USUAL_DATABASE):
        return USUAL_DATABASE
    if (problem := PostgreSQL.missing()) != "":
        raise LookupError(
            f"No PostgreSQL: TEST_DATABASE_URL is not set, {USUAL_DATABASE} does not answer, {problem}."
        )
    server = PostgreSQL(directory() / "postgres")
    atexit.register(server.remove)
    server.start()
    return server.url


def _amqp() -> str:
    if url := os.environ.get("TEST_AMQP_URL"):
        return url
    if amqp_answers(USUAL_AMQP):
        return USUAL_AMQP
    if (problem := RabbitMQ.missing()) != "":
        raise LookupError(f"No RabbitMQ: TEST_AMQP_URL is not set, {USUAL_AMQP} does not answer, {problem}.")
    server = RabbitMQ(directory() / "rabbitmq")
    atexit.register(server.remove)
    server.start()
    reach = {"program": server.control_program(), "name": server.node, "env": server.environment()}
    os.environ["TEST_AMQP_NODE"] = json.dumps(reach)
    return server.url


def database_answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.Error:
        return False
    return True


def amqp_answers(url: str) -> bool:
    """Whether a connection to the virtual host of `url` opens."""
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 5
    parameters.connection_attempts = 1
    try:
        pika.BlockingConnection(parameters).close()
    except (pika.exceptions.AMQPError, OSError):
        return False
    return True
