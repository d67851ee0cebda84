"""`outbox_redispatch`: send once more what was sent, marked or discarded."""

from outbox_core.management.verb_command import VerbCommand


class Command(VerbCommand):
    help = (
        "Send once more what was dispatched, marked or discarded: same id, a new place at the end of its key."
    )
    verb = "redispatch"
