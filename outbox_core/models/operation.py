"""The audit trail: what people did, why, and what it changed. Append-only and hash-chained."""

from __future__ import annotations

from django.db import models


class Operation(models.Model):
    """One act of a person or of the command line. Triggers refuse UPDATE and DELETE; never pruned.

    The actor stands here by id and name and not by foreign key, so that deleting a user changes no history.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    actor_id = models.CharField(max_length=64, blank=True)
    actor = models.CharField(max_length=255)
    origin = models.CharField(max_length=16)  # dashboard, admin, cli, system
    remote = models.CharField(max_length=64, blank=True)
    verb = models.CharField(max_length=32)
    reason = models.CharField(max_length=500)
    message_id = models.CharField(max_length=255, blank=True)  # the one message, if it was one
    selection = models.JSONField(default=dict)  # filter, count, watermark
    outcome = models.CharField(max_length=12)  # done, refused, unchanged, started, finished
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        default_permissions = ()
        permissions = [("view_operation", "Can see the audit trail")]
        indexes = [
            models.Index(
                fields=["message_id", "id"],
                condition=~models.Q(message_id=""),
                name="outbox_operation_message",
            ),
            models.Index(fields=["verb", "id"], name="outbox_operation_verb"),
            models.Index(fields=["actor", "id"], name="outbox_operation_actor"),
            models.Index(fields=["at", "id"], name="outbox_operation_at"),
        ]

    def __str__(self) -> str:
        return f"{self.verb} by {self.actor}"


class OperationItem(models.Model):
    """One message of a bulk act; its outcome is set once."""

    id = models.BigAutoField(primary_key=True)
    operation = models.ForeignKey(Operation, models.DO_NOTHING, related_name="items")
    message = models.BigIntegerField()
    outcome = models.CharField(max_length=12, blank=True)
    detail = models.CharField(max_length=500, blank=True)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["operation", "message"], name="outbox_operation_item_once")
        ]

    def __str__(self) -> str:
        return f"{self.message}: {self.outcome or 'to do'}"
