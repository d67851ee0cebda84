"""`outbox_mark`: take as sent what was not."""

from outbox_core.management.verb_command import VerbCommand


class Command(VerbCommand):
    help = "Take messages as sent that are pending, retrying or dead. Their keys go on."
    verb = "mark"
