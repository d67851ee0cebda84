"""What one dispatcher, the owner of partition 0, does for all."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db.models import Count as SqlCount
from django.db.models import Max

from outbox_core.models import Message, Tally
from outbox_core.sql import exclusive
from outbox_core.tallies import Count, Counts, add

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COUNTED = "committed_to"
"""The kind of the one Tally row whose count is no count, but the id up to which messages were counted."""


def count_committed(using: str, worker: str) -> None:
    """Add to the tallies the messages that were committed since the last count, by their ids.

    `publish()` counts nothing itself: one hot row would make all business transactions wait for each other. A message
    that commits later than one with a higher id by more than a heartbeat is missed: a chart may bear that.
    """
    with exclusive(using) as db:
        mark, _ = (
            Tally.objects.using(using)
            .select_for_update()
            .get_or_create(minute=EPOCH, worker="", destination="", kind=COUNTED, bucket=-1)
        )
        found = list(
            Message.objects.using(using).filter(id__gt=mark.count).values("destination")
            .annotate(messages=SqlCount("id"), newest=Max("id"))
        )  # fmt: skip
        if found:
            counts: Counts = Counts()
            for row in found:
                counts[Count(row["destination"], "committed")] = row["messages"]
            add(using, worker, counts, db.now())
            mark.count = max(row["newest"] for row in found)
            mark.save(using=using, update_fields=["count"])
