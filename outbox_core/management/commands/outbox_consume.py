"""Run the consumers: receive messages and hand them to their handlers."""

from __future__ import annotations

import gc
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from outbox_core.conf import settings
from outbox_core.errors import TransportError
from outbox_core.inbox.consumer import ConsumerLoop
from outbox_core.inbox.registry import Subscription, subscriptions
from outbox_core.shutdown import GRACE, stop_on_signals
from outbox_core.transports import where


class Command(BaseCommand):
    help = (
        "Receive messages and hand them to the functions registered with @subscribe, until SIGTERM or SIGINT; then "
        "finish the running handler, give the rest back and leave within 10 s."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--consumer", action="append", default=[], metavar="C", help="only this consumer (repeatable)"
        )
        parser.add_argument("--once", action="store_true", help="handle what is there and due, then leave")
        parser.add_argument("--name", default="", help="the worker's name (default: host and process id)")
        parser.add_argument("--database", default="default", help="the database alias whose consumers run")
        parser.add_argument("--json", action="store_true", help="report the outcomes as JSON when leaving")

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = self._choose(options["consumer"], options["database"])
        using = options["database"]
        if not options["once"] and not options["json"]:
            names = ", ".join(sorted(chosen))
            self.stdout.write(
                f'Consuming {names} from {where(using)} into database "{using}". Ctrl-C ends it.'
            )
            self.stdout.flush()
        gc.freeze()  # as the dispatcher does
        with stop_on_signals(grace=GRACE) as stop:
            loop = ConsumerLoop(options["database"], chosen, options["name"])
            try:
                outcomes = loop.run(stop, once=options["once"])
            except TransportError as error:
                raise CommandError(str(error), returncode=1) from None
            except DatabaseError as error:
                raise CommandError(f"the database can't be used: {error}", returncode=1) from None
        if options["json"]:
            self.stdout.write(json.dumps(dict(sorted(outcomes.items()))))
        elif options["once"]:
            self.stdout.write(
                ", ".join(f"{n} {what}" for what, n in sorted(outcomes.items())) or "nothing to handle"
            )

    @staticmethod
    def _choose(names: list[str], using: str) -> dict[str, Subscription]:
        if using not in settings.DATABASES:
            raise CommandError(
                f'--database: "{using}" is not in OUTBOX["DATABASES"] ({", ".join(settings.DATABASES)})',
                returncode=2,
            )
        here = {name: s for name, s in subscriptions().items() if s.using == using}
        if unknown := [name for name in names if name not in here]:
            known = ", ".join(here) or "none"
            raise CommandError(
                f'--consumer: no consumer "{unknown[0]}" on database "{using}" (known: {known})', returncode=2
            )
        if not here:
            raise CommandError(
                f'no function is subscribed on database "{using}": see subscribe()', returncode=2
            )
        return {name: s for name, s in here.items() if not names or name in names}
