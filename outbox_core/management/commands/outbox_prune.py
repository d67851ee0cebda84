"""`outbox_prune`: delete what RETENTION lets go."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from outbox_core.operations.retention import BATCH, prune
from outbox_core.operations.words import plural
from outbox_core.shutdown import stop_on_signals


class Command(BaseCommand):
    help = (
        'Delete old facts in small batches, as OUTBOX["RETENTION"] says. What is pending, dead or being handled '
        "stays, and so does the audit trail. Run it daily."
    )

    requires_system_checks = ["outbox"]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--batch", type=int, default=BATCH, help=f"rows per transaction (default: {BATCH})"
        )
        parser.add_argument("--json", action="store_true", help="report as JSON")
        parser.add_argument("--database", default="default", help="the database alias (default: default)")

    def handle(self, *args: Any, **options: Any) -> None:
        using = options["database"]
        if using not in connections:
            raise CommandError(f'--database: there is no "{using}" in DATABASES (see --help)', returncode=2)
        if not 1 <= options["batch"] <= 10_000:
            raise CommandError("--batch must be 1 to 10000 (see --help)", returncode=2)
        with stop_on_signals() as stop:
            pruned = prune(using, batch=options["batch"], go_on=lambda: not stop.is_set())
        if options["json"]:
            self.stdout.write(json.dumps(asdict(pruned)))
            return
        names = {
            "messages": "message",
            "receipts": "receipt",
            "failures": "failed attempt",
            "duplicates": "duplicate",
        }
        told = [plural(n, names[name]) for name, n in asdict(pruned).items()]
        self.stdout.write(f"Deleted {', '.join(told)}.")
