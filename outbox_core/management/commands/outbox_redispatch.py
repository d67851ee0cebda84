"""`outbox_redispatch`: send once more what was sent, marked or discarded."""

from outbox_core.management.verb_command import VerbCommand


class Command(VerbCommand):
    help = "Send messages once more that were dispatched, marked or discarded. Same id, a new place at the end of their key."
    verb = "redispatch"
