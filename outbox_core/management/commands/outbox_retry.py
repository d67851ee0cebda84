"""`outbox_retry`: send what failed again, now."""

from outbox_core.management.verb_command import VerbCommand


class Command(VerbCommand):
    help = "Send messages again, now: those in back-off, retrying or dead. Their place in their key stays."
    verb = "retry"
