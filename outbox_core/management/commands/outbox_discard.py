"""`outbox_discard`: give up what was not sent."""

from outbox_core.management.verb_command import VerbCommand


class Command(VerbCommand):
    help = "Give up messages that are pending, retrying or dead. Their keys go on."
    verb = "discard"
