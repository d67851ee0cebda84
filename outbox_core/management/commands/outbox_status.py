"""`outbox_status`: the numbers, the verdict, and whether the records are whole."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connections

from outbox_core.operations import audit, health, reconcile, stats
from outbox_core.operations.words import duration, plural

USAGE = 2
SHOWN = 5  # silent workers that are named


class Command(BaseCommand):
    help = (
        "Say how delivery is. Exit codes of --check: 0 well, 1 behind or dead messages, 2 no dispatcher; "
        "of --verify-audit and --reconcile: 0 whole, 1 not."
    )
    requires_system_checks = ["outbox"]

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--json", action="store_true", help="the numbers as JSON (exact)")
        what.add_argument("--check", action="store_true", help="one line, and an exit code for a monitor")
        what.add_argument("--verify-audit", action="store_true", help="walk the whole audit chain")
        what.add_argument(
            "--reconcile",
            action="store_true",
            help="look for rows that contradict each other, and repair what is safe",
        )
        parser.add_argument("--database", default="default", help="the database alias (default: default)")

    def handle(self, *args: Any, **options: Any) -> None:
        using = options["database"]
        if using not in connections:
            raise CommandError(
                f'--database: there is no "{using}" in DATABASES (see --help)', returncode=USAGE
            )
        try:
            self._run(using, options)
        except Error as error:
            raise CommandError(f"The database does not answer as it should: {str(error).strip()}") from error

    def _run(self, using: str, options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(stats.status(using), ensure_ascii=False))
        elif options["check"]:
            self._check(using)
        elif options["verify_audit"]:
            self._verify(using)
        elif options["reconcile"]:
            self._reconcile(using)
        else:
            self._show(using)

    def _check(self, using: str) -> None:
        verdict = health.verdict(using)
        sentence = f"{verdict.headline} {verdict.detail}".strip()
        self.stdout.write(sentence)
        if verdict.code:  # an answer, not an error of the command
            sys.exit(verdict.code)

    def _verify(self, using: str) -> None:
        problems = audit.verify(using)
        for problem in problems:
            self.stdout.write(problem)
        number, hash_ = audit.head(using)
        if problems:
            raise CommandError(
                f"The audit trail is not whole: {plural(len(problems), 'problem')}.", returncode=1
            )
        self.stdout.write(
            f"The audit trail is whole up to operation {number}. Its head: {hash_ or 'none yet'}"
        )

    def _reconcile(self, using: str) -> None:
        found = reconcile.reconcile(using)
        for problem in found:
            self.stdout.write(f"{problem.sentence}{' Repaired.' if problem.repaired else ''}")
        left = [p for p in found if not p.repaired]
        if left:
            raise CommandError(f"{plural(len(left), 'problem')} left.", returncode=1)
        self.stdout.write("All rows fit together." if not found else "All problems were repaired.")

    def _show(self, using: str) -> None:
        verdict, numbers = health.verdict(using), stats.status(using)
        self.stdout.write(f"{verdict.headline} {verdict.detail}".strip())
        for name, value in numbers.items():
            if name == "oldest_pending_seconds":
                self.stdout.write(f"{'oldest pending':>18}  {duration(value)}")
            elif name != "workers":
                self.stdout.write(f"{name.replace('_', ' '):>18}  {value:,}")
        silent = [w for w in numbers["workers"] if w["silent"]]
        for w in numbers["workers"]:
            if not w["silent"]:
                self.stdout.write(
                    f"{w['kind']:>18}  {w['name']} on {w['host']}, process {w['pid']}, heard from "
                    f"{duration(w['heartbeat_age_seconds'])} ago, {w['rate']:g}/s, broker {w['broker'] or 'unknown'}"
                )
        if silent:
            names = [f"{w['kind']} {w['name']} for {duration(w['heartbeat_age_seconds'])}" for w in silent]
            more = f" and {len(silent) - SHOWN} more" if len(silent) > SHOWN else ""
            self.stdout.write(f"{f'{len(silent)} silent':>18}  {', '.join(names[:SHOWN])}{more}")
