"""`outbox_check_backlog`: run with the new code before a deploy."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from outbox_core.operations.backlog import check
from outbox_core.operations.words import plural


class Command(BaseCommand):
    help = (
        "Say whether this code can finish what was received and is not done: messages of consumers or types that no "
        "code handles any more. Run it with the new code, before the old one stops. Exit codes: 0 fits, 1 not."
    )

    requires_system_checks = ["outbox"]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="report as JSON")
        parser.add_argument("--database", default="default", help="the database alias (default: default)")

    def handle(self, *args: Any, **options: Any) -> None:
        using = options["database"]
        if using not in connections:
            raise CommandError(f'--database: there is no "{using}" in DATABASES (see --help)', returncode=2)
        problems = check(using)
        if options["json"]:
            self.stdout.write(json.dumps({"problems": problems}, ensure_ascii=False))
        else:
            self.stdout.write("\n".join(problems) or "The backlog fits this code.")
        if problems:
            raise CommandError(f"{plural(len(problems), 'problem')} in the backlog.", returncode=1)
