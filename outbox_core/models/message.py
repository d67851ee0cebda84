"""What was said, and what became of it: facts, inserted once and never updated."""

from __future__ import annotations

from django.db import models

from outbox_core.clock import ClockTimestamp
from outbox_core.states import CAUSES


class Message(models.Model):
    """One message as it was published. Immutable (a trigger refuses UPDATE); `id` is its place at first publish.

    No foreign-key constraint points here: each would write a lock into this big table per send.
    """

    id = models.BigAutoField(primary_key=True)
    message_id = models.UUIDField(unique=True)
    type = models.CharField(max_length=255)
    key = models.CharField(max_length=255, blank=True)
    destination = models.CharField(max_length=511)
    payload = models.TextField()  # the exact JSON text
    digest = models.CharField(max_length=64)  # SHA-256 of the payload's UTF-8 text, hex
    headers = models.JSONField(default=dict)
    correlation_id = models.CharField(max_length=255, blank=True)
    causation_id = models.CharField(max_length=255, blank=True)
    traceparent = models.CharField(max_length=255, blank=True)
    source = models.CharField(max_length=255)
    mandatory = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=ClockTimestamp())

    class Meta:
        default_permissions = ()
        permissions = [
            ("view_message", "Can see messages"),
            ("operate_message", "Can retry, redispatch, mark and discard messages"),
            ("reveal_payload", "Can see masked parts of a payload"),
        ]
        indexes = [
            models.Index(fields=["type", "id"], name="outbox_message_type"),
            models.Index(fields=["key", "id"], condition=~models.Q(key=""), name="outbox_message_key"),
            models.Index(
                fields=["correlation_id", "id"],
                condition=~models.Q(correlation_id=""),
                name="outbox_message_correlation",
            ),
            models.Index(
                fields=["causation_id", "id"],
                condition=~models.Q(causation_id=""),
                name="outbox_message_causation",
            ),
            models.Index(fields=["created_at", "id"], name="outbox_message_created"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.message_id}"


class Dispatch(models.Model):
    """One confirmed send. Append-only: a message that was redispatched has two."""

    id = models.BigAutoField(primary_key=True)
    message = models.ForeignKey(
        Message, models.DO_NOTHING, db_constraint=False, db_column="message", related_name="dispatches"
    )  # fmt: skip
    at = models.DateTimeField(db_default=ClockTimestamp())
    worker = models.CharField(max_length=255)
    attempt = models.PositiveIntegerField()
    position = models.BigIntegerField()  # the place at the first send, repeated by every later one
    cause = models.CharField(max_length=10, choices=[(c, c) for c in CAUSES])
    returned = models.BooleanField(default=False)  # accepted although no queue was bound

    class Meta:
        default_permissions = ()
        verbose_name_plural = "dispatches"
        indexes = [models.Index(fields=["at", "id"], name="outbox_dispatch_at")]

    def __str__(self) -> str:
        return f"dispatch {self.attempt} of {self.message_id}"


class FailedAttempt(models.Model):
    """One failed send (`consumer` empty) or handling, or a send of unknown outcome. Append-only."""

    id = models.BigAutoField(primary_key=True)
    message = models.ForeignKey(
        Message, models.DO_NOTHING, db_constraint=False, db_column="message", null=True,
        related_name="failed_attempts",
    )  # fmt: skip
    foreign_id = models.CharField(max_length=255, blank=True)  # of a received message, as text
    consumer = models.CharField(max_length=255, blank=True)
    at = models.DateTimeField(db_default=ClockTimestamp())
    worker = models.CharField(max_length=255)
    attempt = models.PositiveIntegerField()
    error_class = models.CharField(max_length=255)
    detail = models.TextField()
    fingerprint = models.CharField(max_length=16)
    kind = models.CharField(max_length=10, choices=[(k, k) for k in ("transient", "permanent", "unknown")])

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["at", "id"], name="outbox_failed_at"),
            models.Index(
                fields=["foreign_id", "id"], condition=~models.Q(foreign_id=""), name="outbox_failed_foreign"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.error_class} at attempt {self.attempt}"
