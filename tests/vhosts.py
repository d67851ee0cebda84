"""A virtual host of this run's own on the broker under test, and its tidying between tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import pika

from tests.servers import RUN, amqp_answers

TIMEOUT = 30  # seconds for one rabbitmqctl


class VirtualHost:
    """`url` is where tests go: the one given, where no virtual host can be made (no rabbitmqctl for this broker)."""

    def __init__(self, given: str) -> None:
        self.name = f"outboard-test-{RUN}"
        self.url = self._given = given
        self._made = False
        self._connection: pika.BlockingConnection | None = None

    def make(self) -> None:
        parts = urlsplit(self._given)
        user = unquote(parts.username or "guest")
        url = urlunsplit(parts._replace(path="/" + quote(self.name, safe="")))
        self._made = True  # before it is: a run may be ended while rabbitmqctl works
        made = _ctl("add_vhost", self.name) and _ctl(
            "set_permissions", "-p", self.name, user, ".*", ".*", ".*"
        )
        if made and amqp_answers(url):
            self.url = url
        else:  # rabbitmqctl speaks to another broker than the one of the URL, or to none
            self.remove()

    def remove(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
        if self._made:
            _ctl("delete_vhost", self.name)
            self._made = False

    def tidy(self, exchange: str, queues: Iterable[str]) -> None:
        """Delete a test's exchange and queues; those that do not exist are no error."""
        if self._connection is None or not self._connection.is_open:
            parameters = pika.URLParameters(self.url)
            parameters.heartbeat = 0
            self._connection = pika.BlockingConnection(parameters)
        channel = self._connection.channel()
        for queue in queues:
            channel.queue_delete(queue)
        channel.exchange_delete(exchange)
        channel.close()


def _ctl(*arguments: str) -> bool:
    # A node that this run has started says in TEST_AMQP_NODE how to reach it.
    node = json.loads(os.environ.get("TEST_AMQP_NODE", "null"))
    program = node["program"] if node else shutil.which("rabbitmqctl")
    if program is None:
        return False
    command = [program, "-q", *(["-n", node["name"]] if node else []), *arguments]
    try:
        done = subprocess.run(command, env=node and node["env"], capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
