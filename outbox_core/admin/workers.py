"""Who is at work, and what was counted."""

from __future__ import annotations

from django.contrib import admin

from outbox_core.admin.payloads import pretty
from outbox_core.admin.readonly import ReadOnly, choice
from outbox_core.models import Lease, Partition, Tally, Worker
from outbox_core.outbox.leases import decode


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    """Live processes and their last sign of life."""

    list_display = (
        "name",
        "kind",
        "host",
        "pid",
        "version",
        "heartbeat",
        "partitions",
        "rate",
        "broker",
        "wakeup",
    )
    exclude = ("problems",)
    readonly_fields = ("pretty_problems",)

    @admin.display(description="problems")
    def pretty_problems(self, row: Worker) -> str:
        return pretty(row.problems)


@admin.register(Lease)
class LeaseAdmin(ReadOnly):
    """Live dispatchers, and how much each is sending."""

    list_display = ("token", "name", "until", "turn", "turned_at", "being_sent")
    readonly_fields = ("being_sent",)

    @admin.display(description="being sent")
    def being_sent(self, row: Lease) -> int:
        return len(decode(row.in_flight))


@admin.register(Partition)
class PartitionAdmin(ReadOnly):
    """The 64 parts of the queue and their owners."""

    list_display = ("number", "lease")
    list_select_related = ("lease",)
    list_per_page = 64
    ordering = ("number",)


@admin.register(Tally)
class TallyAdmin(ReadOnly):
    """Counts per minute, worker, destination and kind."""

    list_display = ("minute", "kind", "destination", "worker", "bucket", "count")
    list_filter = (choice("kind", Tally.KINDS),)
