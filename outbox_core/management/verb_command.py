"""The command line of the four verbs: which messages, why, and what became of each."""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connections

from outbox_core.errors import EffectMayRepeat, InvalidMessage, OutboxError, StateChanged
from outbox_core.models import Message
from outbox_core.operations import audit
from outbox_core.operations.facts import versions
from outbox_core.operations.filters import Selection
from outbox_core.operations.selection import matching
from outbox_core.operations.verbs import Actor, act
from outbox_core.operations.words import DONE, plural
from outbox_core.states import VERBS

USAGE, NOTHING, REFUSED = 2, 3, 4
SAMPLES = 20  # lines that a person gets to read; --json lists all
BATCH = 500
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A message of the selection, as it was when the selection was frozen. `pk` None: there is no such message."""

    pk: int | None
    message_id: str
    version: str

    @property
    def state(self) -> str:
        return self.version.partition(".")[0]


class VerbCommand(BaseCommand):
    """A command for one verb. Exit codes: 0 done, 1 error, 2 usage, 3 nothing matched, 4 some refused."""

    verb: str
    requires_system_checks = ["outbox"]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--reason", help="why, for the audit trail (1 to 500 characters); required")
        which = parser.add_argument_group("which messages (several filters must all match)")
        which.add_argument("--id", action="append", metavar="UUID", help="this message; may be repeated")
        which.add_argument("--state", choices=[str(s) for s in VERBS[self.verb]], help="in this state")
        which.add_argument("--type", help="of this type; * stands for any text")
        which.add_argument("--key", help="with this key")
        which.add_argument("--error", help="an error class, a fingerprint, or part of the error's text")
        which.add_argument(
            "--older-than", metavar="TIME", help="committed longer ago than 30s, 10m, 2h or 1d"
        )
        which.add_argument("--all", action="store_true", help=f"all that can be {DONE[self.verb]}")
        parser.add_argument("--limit", type=int, help="at most so many, the newest first")
        parser.add_argument("--dry-run", action="store_true", help="only say which messages match")
        parser.add_argument("--json", action="store_true", help="report as JSON")
        parser.add_argument("--database", default="default", help="the database alias (default: default)")

    def handle(self, *args: Any, **options: Any) -> None:
        using = self._database(options)
        selection = self._selection(options)
        reason = self._reason(options)
        chosen = self._freeze(selection, using)
        if not any(c.pk for c in chosen):
            self._report({"matched": 0, "items": [], "verb": self.verb}, options)
            raise CommandError("No message matches.", returncode=NOTHING)
        if options["dry_run"]:
            self._show_what_matches(chosen, options)
            return
        actor = Actor(id="", name=getpass.getuser(), origin="cli")
        again = options.get("again", False)
        items = [self._act(c, actor, reason, selection, using, again) for c in chosen]
        self._conclude(items, options)

    # What was asked for.

    def _database(self, options: dict[str, Any]) -> str:
        if options["database"] not in connections:
            raise self._usage(f'--database: there is no "{options["database"]}" in DATABASES')
        return str(options["database"])

    def _reason(self, options: dict[str, Any]) -> str:
        if not options["reason"] and options["dry_run"]:
            return ""
        if options["reason"] is None:
            raise self._usage("--reason is missing: say why, for the audit trail")
        try:
            return audit.checked_reason(options["reason"])
        except InvalidMessage as error:
            raise self._usage(f"--{error}") from None

    def _selection(self, options: dict[str, Any]) -> Selection:
        if options["limit"] is not None and options["limit"] < 1:
            raise self._usage("--limit must be at least 1")
        selection = Selection(
            state=options["state"] or "", type=options["type"] or "", key=options["key"] or "",
            error=options["error"] or "", older_than=self._age(options["older_than"]),
            ids=tuple(self._ids(options["id"] or ())), limit=options["limit"],
        )  # fmt: skip
        if options["all"] and not selection.is_empty:
            raise self._usage("--all stands alone: leave it out, or leave out the filters")
        if not options["all"] and selection.is_empty:
            raise self._usage(
                "which messages? Give --id, --state, --type, --key, --error, --older-than or --all"
            )
        return selection

    def _ids(self, texts: Iterable[str]) -> Iterator[UUID]:
        for text in dict.fromkeys(texts):
            try:
                yield UUID(text)
            except ValueError:
                raise self._usage(f'--id: "{text}" is not a message id (a UUID)') from None

    def _age(self, text: str | None) -> float | None:
        if text is None:
            return None
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])", text.strip())
        if match is None:
            raise self._usage(f'--older-than: "{text}" is not a time like 30s, 10m, 2h or 1d')
        return float(match[1]) * UNITS[match[2]]

    def _usage(self, sentence: str) -> CommandError:
        return CommandError(f"{sentence} (see --help)", returncode=USAGE)

    # Choosing.

    def _freeze(self, selection: Selection, using: str) -> list[Chosen]:
        """The messages as they are now: what arrives or changes after this is left alone."""
        chosen: dict[int, Chosen] = {}
        pks = self._candidates(selection, using)
        while batch := list(islice(pks, BATCH)):
            for pk, (uuid, version) in versions(batch, using).items():
                chosen[pk] = Chosen(pk, str(uuid), version)
        known = {c.message_id for c in chosen.values()}
        missing: list[Chosen] = []
        if not _filters(selection):
            missing = [Chosen(None, str(i), "") for i in selection.ids if str(i) not in known]
        # Oldest first: what is redispatched draws its new place in the order of the old ones.
        return [*(chosen[pk] for pk in sorted(chosen)), *missing]

    def _candidates(self, selection: Selection, using: str) -> Iterator[int]:
        if selection.state or selection.ids:
            yield from matching(selection, using)
            return
        left = selection.limit
        for state in VERBS[self.verb]:
            for pk in matching(replace(selection, state=str(state), limit=left), using):
                left = None if left is None else left - 1
                yield pk
            if left == 0:
                return

    # Acting.

    def _act(
        self, chosen: Chosen, actor: Actor, reason: str, selection: Selection, using: str, again: bool
    ) -> dict[str, Any]:  # fmt: skip
        item: dict[str, Any] = {"message_id": chosen.message_id}
        if chosen.pk is None:
            return item | {"outcome": "missing", "state": "", "detail": "There is no such message."}
        # A message that was named is acted on as it is; one that a filter chose, only as the filter saw it.
        version = None if selection.ids else chosen.version
        try:
            acted = act(
                self.verb, chosen.pk, actor=actor, reason=reason, version=version, using=using,
                selection=selection.as_json(), again=again,
            )  # fmt: skip
        except StateChanged as refusal:
            at = refusal.at.isoformat() if refusal.at else None
            return item | {
                "outcome": "refused", "state": refusal.actual_state, "by": refusal.by, "at": at, "detail": str(refusal),
            }  # fmt: skip
        except EffectMayRepeat as refusal:
            return item | {
                "outcome": "refused", "state": chosen.state, "detail": str(refusal),
                "may_repeat": refusal.consumers,
            }  # fmt: skip
        except Message.DoesNotExist:
            return item | {"outcome": "missing", "state": "", "detail": "It was pruned meanwhile."}
        except (OutboxError, Error) as error:
            return item | {"outcome": "error", "state": chosen.state, "detail": str(error).strip()}
        operation = acted.operation.pk if acted.operation else None
        return item | {"outcome": acted.outcome, "state": acted.state, "operation": operation}

    # Reporting.

    def _show_what_matches(self, chosen: list[Chosen], options: dict[str, Any]) -> None:
        found = [c for c in chosen if c.pk is not None]
        items = [{"message_id": c.message_id, "state": c.state} for c in found]
        self._report({"verb": self.verb, "dry_run": True, "matched": len(found), "items": items}, options)
        if not options["json"]:
            self._lines(f"{c.message_id}  {c.state}" for c in found)
            self.stdout.write(
                f"{plural(len(found), 'message')} would be {DONE[self.verb]}. Nothing was changed."
            )

    def _conclude(self, items: list[dict[str, Any]], options: dict[str, Any]) -> None:
        count = {
            o: sum(i["outcome"] == o for i in items)
            for o in ("done", "unchanged", "refused", "missing", "error")
        }
        self._report({"verb": self.verb, "matched": len(items), **count, "items": items}, options)
        if not options["json"]:
            self._lines(i["detail"] for i in items if i["outcome"] not in ("done", "unchanged"))
            told = [f"{plural(count['done'], 'message')} {DONE[self.verb]}"]
            told += [f"{n:,} {outcome}" for outcome, n in count.items() if n and outcome != "done"]
            self.stdout.write(", ".join(told) + ".")
        if count["error"]:
            raise CommandError(f"{plural(count['error'], 'message')} met an error.", returncode=1)
        if left := count["refused"] + count["missing"]:
            raise CommandError(
                f"{plural(left, 'message was', 'messages were')} left alone.", returncode=REFUSED
            )

    def _report(self, report: dict[str, Any], options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(report, ensure_ascii=False))

    def _lines(self, lines: Iterable[str]) -> None:
        lines = list(lines)
        for line in lines[:SAMPLES]:
            self.stdout.write(line)
        if len(lines) > SAMPLES:
            self.stdout.write(f"and {len(lines) - SAMPLES:,} more (--json lists all)")


def _filters(selection: Selection) -> bool:
    """Whether anything but ids is filtered, so that an id that does not match may exist all the same."""
    return not replace(selection, ids=()).is_empty or selection.limit is not None
