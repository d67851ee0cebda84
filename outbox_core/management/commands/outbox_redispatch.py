"""`outbox_redispatch`: send once more what was sent, marked or discarded."""

from django.core.management.base import CommandParser

from outbox_core.management.verb_command import VerbCommand


class Command(VerbCommand):
    help = (
        "Send once more what was dispatched, marked or discarded: same id, a new place at the end of its key."
    )
    verb = "redispatch"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--again", action="store_true",
            help="also what was last sent before the dedupe window, and may take effect a second time",
        )  # fmt: skip
