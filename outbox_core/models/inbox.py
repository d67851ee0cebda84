"""The consumer's side: what was received, what became of it, and every duplicate."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from outbox_core.clock import ClockTimestamp


class Receipt(models.Model):
    """A consumer's record of a message that it is done with: with it, a second copy has no effect."""

    id = models.BigAutoField(primary_key=True)
    consumer = models.CharField(max_length=255)
    message_id = models.CharField(max_length=255)  # text: foreign ids are no UUIDs
    received_at = models.DateTimeField()
    processed_at = models.DateTimeField(db_default=ClockTimestamp())
    outcome = models.CharField(max_length=10, choices=[(o, o) for o in ("processed", "stale", "rejected")])
    digest = models.CharField(max_length=64)  # SHA-256 of the body, hex
    attempt = models.PositiveIntegerField(default=1)  # outbox-attempt of the copy that took effect
    position = models.BigIntegerField(null=True)

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["message_id"], name="outbox_receipt_message"),
            models.Index(fields=["processed_at", "id"], name="outbox_receipt_processed"),
        ]
        constraints = [models.UniqueConstraint(fields=["consumer", "message_id"], name="outbox_receipt_once")]

    def __str__(self) -> str:
        return f"{self.consumer} {self.outcome} {self.message_id}"


class Handling(models.Model):
    """A received message that is not done: retried from here, never by a broker's requeue loop.

    `envelope` holds properties and headers, `body` the raw bytes, so that nothing is lost of what came.
    """

    id = models.BigAutoField(primary_key=True)
    consumer = models.CharField(max_length=255)
    message_id = models.CharField(max_length=255, null=True)  # noqa: DJ001 -- NULL: it has none, and is not unique
    type = models.CharField(max_length=255, blank=True)
    key = models.CharField(max_length=255, blank=True)
    position = models.BigIntegerField(null=True)
    envelope = models.JSONField(default=dict)
    body = models.BinaryField()
    digest = models.CharField(max_length=64)
    state = models.CharField(
        max_length=12, choices=[(s, s) for s in ("retrying", "waiting", "dead", "undecodable")]
    )
    attempts = models.PositiveIntegerField(default=0)  # runs begun
    failures = models.PositiveIntegerField(default=0)  # runs that failed
    received_at = models.DateTimeField(db_default=ClockTimestamp())
    available_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)  # when it was given up; NULL while it goes on
    error_class = models.CharField(max_length=255, blank=True)
    error = models.TextField(blank=True)
    fingerprint = models.CharField(max_length=16, blank=True)

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(
                fields=["consumer", "available_at"],
                condition=Q(available_at__isnull=False),
                name="outbox_handling_due",
            ),
            models.Index(fields=["state", "id"], name="outbox_handling_state"),
            models.Index(fields=["consumer", "key", "id"], condition=~Q(key=""), name="outbox_handling_key"),
            models.Index(fields=["message_id"], name="outbox_handling_message"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["consumer", "message_id"], name="outbox_handling_once"),
            models.CheckConstraint(
                condition=Q(available_at__isnull=False, state="retrying")
                | Q(available_at__isnull=True) & ~Q(state="retrying"),
                name="outbox_handling_due_if_retrying",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer} {self.state} {self.message_id}"


class Newest(models.Model):
    """The newest position that a consumer applied per (source, key): what `discard_stale` stands on."""

    id = models.BigAutoField(primary_key=True)
    consumer = models.CharField(max_length=255)
    source = models.CharField(max_length=255)
    key = models.CharField(max_length=255)
    position = models.BigIntegerField()
    at = models.DateTimeField(db_default=ClockTimestamp())

    class Meta:
        default_permissions = ()
        verbose_name_plural = "newest"
        constraints = [
            models.UniqueConstraint(fields=["consumer", "source", "key"], name="outbox_newest_once")
        ]

    def __str__(self) -> str:
        return f"{self.consumer} {self.key} at {self.position}"


class Duplicate(models.Model):
    """One duplicate that was seen and had no effect. Append-only ledger.

    `consumer` is empty for a producer that published the same id again.
    """

    CAUSES = ("redelivered", "resend", "operator", "race", "producer")

    id = models.BigAutoField(primary_key=True)
    consumer = models.CharField(max_length=255, blank=True)
    message_id = models.CharField(max_length=255)
    type = models.CharField(max_length=255, blank=True)
    at = models.DateTimeField(db_default=ClockTimestamp())
    cause = models.CharField(max_length=12, choices=[(c, c) for c in CAUSES])
    gap = models.DurationField(null=True)  # since the first copy
    same_payload = models.BooleanField()
    attempt = models.PositiveIntegerField(default=1)
    digest = models.CharField(max_length=64)

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["message_id"], name="outbox_duplicate_message"),
            models.Index(fields=["cause", "id"], name="outbox_duplicate_cause"),
            models.Index(fields=["consumer", "id"], name="outbox_duplicate_consumer"),
            models.Index(fields=["at", "id"], name="outbox_duplicate_at"),
            models.Index(
                fields=["at", "id"], condition=Q(same_payload=False), name="outbox_duplicate_differs"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.cause} of {self.message_id}"


class Binding(models.Model):
    """A binding that this project declared, remembered so that one whose code is gone can be unbound."""

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(max_length=255)
    exchange = models.CharField(max_length=255)
    pattern = models.CharField(max_length=255)
    declared_at = models.DateTimeField(db_default=ClockTimestamp())

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["queue", "exchange", "pattern"], name="outbox_binding_once")
        ]

    def __str__(self) -> str:
        return f"{self.exchange}:{self.pattern} -> {self.queue}"
