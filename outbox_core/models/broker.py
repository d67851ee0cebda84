"""The tables of the embedded loopback broker: queues, bindings and deliveries that survive a restart."""

from __future__ import annotations

from django.db import models

from outbox_core.clock import ClockTimestamp


class LoopbackQueue(models.Model):
    """A durable queue."""

    name = models.CharField(max_length=255, primary_key=True)
    single_active = models.BooleanField(default=False)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class LoopbackBinding(models.Model):
    """A topic binding: `*` stands for one word, `#` for any number of words."""

    id = models.BigAutoField(primary_key=True)
    queue = models.ForeignKey(LoopbackQueue, models.CASCADE)
    exchange = models.CharField(max_length=255)
    pattern = models.CharField(max_length=255)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["exchange", "pattern", "queue"], name="outbox_loopback_binding_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.exchange}:{self.pattern} -> {self.queue_id}"


class LoopbackDelivery(models.Model):
    """One copy of a message in one queue, until it is acked.

    A consumer takes it until `visible_at`; when that passes without an ack it is delivered again.
    """

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(max_length=255)
    exchange = models.CharField(max_length=255)
    routing_key = models.CharField(max_length=255)
    properties = models.JSONField()
    headers = models.JSONField()
    body = models.BinaryField()
    taken_by = models.CharField(max_length=64, blank=True)
    visible_at = models.DateTimeField(db_default=ClockTimestamp())
    deliveries = models.PositiveIntegerField(default=0)

    class Meta:
        default_permissions = ()
        verbose_name_plural = "loopback deliveries"
        indexes = [models.Index(fields=["queue", "id"], name="outbox_loopback_queue")]

    def __str__(self) -> str:
        return f"{self.routing_key} in {self.queue}"
