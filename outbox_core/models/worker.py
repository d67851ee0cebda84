"""Who is at work: leases and partitions of the dispatchers, heartbeats of every worker, counts per minute."""

from __future__ import annotations

from django.db import models

from outbox_core.clock import ClockTimestamp

PARTITIONS = 64


class Lease(models.Model):
    """A live dispatcher. The token is never reused; `in_flight` names all that it may have sent.

    `in_flight` is the sorted message ids, delta-coded (see `outbox.leases`). `turn` counts its committed turns.
    """

    token = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=255)
    started_at = models.DateTimeField(db_default=ClockTimestamp())
    until = models.DateTimeField()
    in_flight = models.BinaryField(default=b"")
    turn = models.BigIntegerField(default=0)
    turned_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"lease {self.token} of {self.name}"


class Partition(models.Model):
    """One of the 64 parts of the queue, and the dispatcher that owns it."""

    number = models.PositiveSmallIntegerField(primary_key=True)
    lease = models.ForeignKey(Lease, models.DO_NOTHING, null=True, db_constraint=False, db_column="lease")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"partition {self.number}"


class Worker(models.Model):
    """A live process: what it is, where, and how it fares. Overseeing only; no recovery depends on it."""

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=12)  # dispatcher, consumer, traffic
    name = models.CharField(max_length=255)
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    version = models.CharField(max_length=32)
    started_at = models.DateTimeField(db_default=ClockTimestamp())
    heartbeat = models.DateTimeField(db_default=ClockTimestamp())
    partitions = models.PositiveSmallIntegerField(default=0)
    rate = models.FloatField(default=0)  # messages per second since the last heartbeat
    broker = models.CharField(max_length=12, blank=True)
    broker_detail = models.TextField(blank=True)
    broker_since = models.DateTimeField(null=True)
    wakeup = models.CharField(max_length=8, blank=True)
    problems = models.JSONField(default=dict)
    drain = models.BooleanField(default=False)  # asked to leave

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="outbox_worker_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Tally(models.Model):
    """Counts per minute, worker, destination (or consumer) and kind; charts and sums read this, never COUNT(*).

    `bucket` is the log2 class of the latency in milliseconds (see `operations.tallies`), or -1 where none is measured.
    One process writes a row, so no two wait for each other.
    """

    KINDS = (
        "committed", "dispatched", "failed", "dead", "handled", "handling_failed", "handling_dead", "duplicate",
    )  # fmt: skip

    id = models.BigAutoField(primary_key=True)
    minute = models.DateTimeField()
    worker = models.CharField(max_length=255)
    destination = models.CharField(max_length=511)
    kind = models.CharField(max_length=16)
    bucket = models.SmallIntegerField(default=-1)
    count = models.BigIntegerField(default=0)

    class Meta:
        default_permissions = ()
        verbose_name_plural = "tallies"
        constraints = [
            models.UniqueConstraint(
                fields=["minute", "worker", "destination", "kind", "bucket"], name="outbox_tally_once"
            )
        ]
        indexes = [models.Index(fields=["kind", "minute"], name="outbox_tally_kind")]

    def __str__(self) -> str:
        return f"{self.count} {self.kind} at {self.minute:%H:%M}"
