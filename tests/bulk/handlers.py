"""A consumer with one effect per message that can be counted. BULK_GROUP: how many share a transaction."""

from __future__ import annotations

import os

from dashboard.demo.models import Letter
from outbox_core import subscribe
from outbox_core.inbox.message import InboxMessage

CONSUMER, TYPE = "bulk", "bulk.said"


@subscribe(TYPE, consumer=CONSUMER, group=int(os.environ.get("BULK_GROUP", "1")))
def write(message: InboxMessage) -> None:
    Letter.objects.create(to=message.id, subject=message.type)
