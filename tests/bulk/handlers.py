"""A consumer with one effect per message that can be counted. BULK_GROUP: how many share a transaction."""

from __future__ import annotations

import os

from django.db import connection

from dashboard.demo.models import Letter
from outbox_core import subscribe
from outbox_core.inbox.message import InboxMessage

CONSUMER, TYPE = "bulk", "bulk.said"
INSERT = f'INSERT INTO {Letter._meta.db_table} ("to", subject, sent_at) VALUES (%s, %s, CURRENT_TIMESTAMP)'


@subscribe(TYPE, consumer=CONSUMER, group=int(os.environ.get("BULK_GROUP", "1")))
def write(message: InboxMessage) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [message.id, message.type])
