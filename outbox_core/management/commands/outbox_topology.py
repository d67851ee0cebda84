"""`outbox_topology`: the broker's exchange, queues and bindings against those of the code."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from outbox_core.conf import settings
from outbox_core.errors import TransportError
from outbox_core.inbox import bindings
from outbox_core.transports import transport
from outbox_core.transports.base import Difference

ERROR, USAGE = 1, 2


class Command(BaseCommand):
    help = (
        "Compare the broker's exchange, queues and bindings with the code's subscriptions (--check), or declare them "
        "and unbind those whose subscription is gone (--apply). Nothing else is ever changed or deleted. "
        "Exit codes: 0 they agree, 1 they differ or the broker can't be reached, 2 usage."
    )
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "--check", action="store_true", help="say what is missing or differs, and change nothing"
        )
        what.add_argument(
            "--apply", action="store_true", help="declare and bind what is missing; may be repeated"
        )
        parser.add_argument("--json", action="store_true", help="report as JSON: exchange, differences")
        parser.add_argument(
            "--database", default="default", help="the alias whose table remembers the bindings"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        using = options["database"]
        if using not in settings.DATABASES:
            known = ", ".join(settings.DATABASES)
            raise CommandError(
                f'--database: "{using}" is not in OUTBOX["DATABASES"] ({known})', returncode=USAGE
            )
        act = bindings.check if options["check"] else bindings.apply
        try:
            left = act(transport(using), using)
        except (TransportError, DatabaseError) as error:
            raise CommandError(str(error).strip(), returncode=ERROR) from None
        if options["json"]:
            report = {"exchange": settings.EXCHANGE, "differences": [asdict(one) for one in left]}
            self.stdout.write(json.dumps(report, ensure_ascii=False))
        else:
            self._tell(left)
        if left:
            raise CommandError(f"{len(left)} left that differ from the code.", returncode=ERROR)

    def _tell(self, left: list[Difference]) -> None:
        for one in left:
            self.stdout.write(f"{one.kind} {one.name}: {one.detail}")
        if not left:
            self.stdout.write(f'The broker agrees with the code (exchange "{settings.EXCHANGE}").')
