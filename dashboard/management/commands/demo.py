"""`manage.py demo`: the whole thing on this host, with a shop that makes messages. Ctrl-C ends it."""

from __future__ import annotations

import http.client
import os
import socket
import sys
import time
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from dashboard.demo.supervisor import Role, Supervisor
from dashboard.demo.users import USERS, is_local, make_users

HOST = "127.0.0.1"
TOPOLOGY_WAIT = 10.0  # seconds that the dispatcher waits at most for queues to be declared


class Command(BaseCommand):
    """Migrates, makes two users on an empty local database, then runs all processes until a signal.

    Ends with exit code 0 after SIGTERM or Ctrl-C, and 1 with one line if the port is taken.
    """

    requires_system_checks = ["outbox"]  # wrong settings stop it here; each process runs all checks itself
    help = "Run web, consumer, dispatcher and demo traffic together on 127.0.0.1:$PORT."

    def handle(self, **options: Any) -> None:
        with _listen(settings.PORT) as listener:
            call_command("migrate", verbosity=0)
            self._users()
            connections.close_all()
            web = Readiness(settings.PORT, lambda url: self._say("demo", f"Outboard is ready at {url}"))
            Supervisor(_roles(listener), self._say, web.look).run()
        self._say("demo", "All processes have ended.")

    def _say(self, role: str, line: str) -> None:
        self.stdout.write(f"{role:<10} | {line}")
        self.stdout.flush()

    def _users(self) -> None:
        for name in make_users():
            self._say(
                "demo", f"Made the user {name} with the password {name} (groups: {', '.join(USERS[name])})"
            )
        if not is_local():
            self._say(
                "demo",
                "The database is not on this host, so no demo users were made: use manage.py createsuperuser.",
            )


def _listen(port: int) -> socket.socket:
    """The listening socket, held by the supervisor: a taken port shows before anything starts, and a restart of
    the web process refuses no connection."""
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise CommandError(f"Cannot listen on {HOST}:{port}: {reason}. Set PORT to a free port.") from None


def _roles(listener: socket.socket) -> list[Role]:
    """The processes, in the order of their start. The dispatcher waits for the queues, so that its first messages
    find one bound; if the broker is down it starts all the same and waits for the broker."""
    manage = [sys.executable, str(settings.BASE_DIR / "manage.py")]
    return [
        Role("consumer", [*manage, "outbox_consume"]),
        Role("topology", [*manage, "outbox_topology", "--apply"], once=True),
        Role(
            "web",
            [sys.executable, "-m", "daphne", "--fd", str(listener.fileno()), "--websocket_timeout", "-1",
             "--no-server-name", "--verbosity", "0", "dashboard.project.asgi:application"],
            pass_fds=[listener.fileno()],
        ),
        Role("dispatcher", [*manage, "outbox_dispatch"], after="topology", patience=TOPOLOGY_WAIT),
        Role("traffic", [*manage, "demo_traffic"], after="topology", patience=TOPOLOGY_WAIT),
    ]  # fmt: skip


class Readiness:
    """Says once that the web process answers."""

    def __init__(self, port: int, say: Any) -> None:
        self.port, self.say = port, say
        self._next, self._ready = 0.0, False

    def look(self) -> None:
        """Ask /-/live, at most every half second and without waiting long, until it answered."""
        if self._ready or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.5
        asked = http.client.HTTPConnection(HOST, self.port, timeout=0.5)
        try:
            asked.request("GET", "/-/live")
            if asked.getresponse().status == 200:
                self._ready = True
                self.say(f"http://{HOST}:{self.port}/")
        except (OSError, http.client.HTTPException):
            pass
        finally:
            asked.close()
