"""`outbox_dispatch`: the relay."""

from __future__ import annotations

import gc
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, connections

from outbox_core.conf import settings
from outbox_core.errors import TransportError
from outbox_core.heartbeat import worker_name
from outbox_core.outbox.dispatcher import Dispatcher
from outbox_core.shutdown import Stop, stop_on_signals
from outbox_core.transports import where


class Command(BaseCommand):
    """Sends what is pending to the broker until SIGTERM, then leaves within 10 s."""

    help = "Send pending messages to the broker."
    requires_system_checks = ["outbox"]  # a worker needs no URLs and no templates

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="send what is due now, then leave")
        parser.add_argument("--name", default="", help="the worker's name (default: host and process id)")
        parser.add_argument("--database", default="default", help="the database alias (default: default)")
        parser.add_argument("--json", action="store_true", help="with --once: report as JSON")

    def handle(self, *, once: bool, name: str, database: str, **options: Any) -> None:
        if database not in connections:
            raise CommandError(f'--database: there is no database "{database}"', returncode=2)
        if database not in settings.DATABASES:
            raise CommandError(f'--database: "{database}" is not in OUTBOX["DATABASES"]', returncode=2)
        name = name or worker_name()
        if not once:
            self.stdout.write(
                f'Dispatcher {name}: from database "{database}" to {where(database)}. Ctrl-C ends it.'
            )
            self.stdout.flush()
        gc.freeze()  # what is loaded by now stays: the collector need not walk through it again and again
        with stop_on_signals(Stop(), grace=10.0) as stop:
            try:
                sent = Dispatcher(database, name).run(stop, once=once)
            except (TransportError, DatabaseError, InterfaceError) as error:
                raise CommandError(str(error).strip()) from None
        if once:
            self.stdout.write(json.dumps({"confirmed": sent}) if options["json"] else f"{sent} confirmed")
