"""The queue: what is still owed to the broker, and what will not be sent unless a person acts."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from outbox_core.clock import ClockTimestamp
from outbox_core.models.message import Message
from outbox_core.states import CAUSES, PARKED


class Pending(models.Model):
    """A message still owed to the broker. Small rows, deleted on the confirm; its indexes are the queue.

    `available_at` is when it may go; NULL means *set aside*: an earlier message of its key must go first,
    and whatever removes that one promotes this one; or it is `stranded`: its destination fails, and others find out
    whether it still does. `position` is its place in the queue of its key.
    """

    message = models.OneToOneField(
        Message, models.DO_NOTHING, primary_key=True, db_constraint=False, db_column="message",
        related_name="pending",
    )  # fmt: skip
    partition = models.PositiveSmallIntegerField()
    key = models.CharField(max_length=255, blank=True)
    position = models.BigIntegerField()
    first_position = models.BigIntegerField(
        null=True
    )  # where it stood at its first send, if that was elsewhere
    type = models.CharField(max_length=255)
    destination = models.CharField(max_length=511)
    available_at = models.DateTimeField(null=True)
    scheduled = models.BooleanField(default=False)  # delayed: takes its place when it falls due
    direct = models.BooleanField(default=False)  # its producer may be sending it, until available_at
    stranded = models.BooleanField(db_default=False)  # set aside since its destination fails
    late = models.BooleanField(default=False)  # others of its key passed it: header outbox-late
    attempts = models.PositiveIntegerField(default=0)  # sends opened
    failures = models.PositiveIntegerField(default=0)  # failures that are the message's own
    cause = models.CharField(max_length=10, default="first", choices=[(c, c) for c in CAUSES])
    operation = models.BigIntegerField(null=True)
    error_class = models.CharField(max_length=255, blank=True)
    last_error = models.TextField(blank=True)

    class Meta:
        default_permissions = ()
        verbose_name_plural = "pending"
        indexes = [
            models.Index(
                fields=["partition", "available_at", "position"],
                condition=Q(available_at__isnull=False),
                name="outbox_ready",
            ),
            models.Index(
                fields=["partition", "key", "position"],
                condition=~Q(key="") & Q(scheduled=False),
                name="outbox_lane",
            ),
            models.Index(
                fields=["partition", "key", "position"],
                condition=Q(available_at__isnull=True),
                name="outbox_aside",
            ),
            models.Index(
                fields=["destination", "type", "partition", "position"],
                condition=Q(stranded=True),
                name="outbox_stranded",
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(partition__lt=64), name="outbox_pending_partition"),
            models.CheckConstraint(
                condition=Q(available_at__isnull=False)
                | (~Q(key="") & Q(scheduled=False))
                | Q(stranded=True),
                name="outbox_pending_aside_has_key",
            ),
            models.CheckConstraint(
                condition=Q(stranded=False) | Q(available_at__isnull=True, scheduled=False),
                name="outbox_pending_stranded_is_aside",
            ),
            models.CheckConstraint(
                condition=Q(failures__lte=F("attempts")), name="outbox_pending_failures_are_attempts"
            ),
        ]

    def __str__(self) -> str:
        return f"pending {self.message_id}"


class Parked(models.Model):
    """An outgoing message that will not be sent unless a person acts: dead, marked or discarded.

    `holds`: its key waits for it (only a dead one can hold, and only a keyed one).
    """

    message = models.OneToOneField(
        Message, models.DO_NOTHING, primary_key=True, db_constraint=False, db_column="message",
        related_name="parked",
    )  # fmt: skip
    state = models.CharField(max_length=10, choices=[(s.value, s.value) for s in PARKED])
    partition = models.PositiveSmallIntegerField()
    key = models.CharField(max_length=255, blank=True)
    position = models.BigIntegerField()
    first_position = models.BigIntegerField(null=True)  # as in Pending, kept for a later send
    late = models.BooleanField(default=False)
    type = models.CharField(max_length=255)
    destination = models.CharField(max_length=511)
    holds = models.BooleanField()
    at = models.DateTimeField(db_default=ClockTimestamp())
    attempts = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)
    error_class = models.CharField(max_length=255, blank=True)
    error = models.TextField(blank=True)
    fingerprint = models.CharField(max_length=16, blank=True)
    operation = models.BigIntegerField(null=True)

    class Meta:
        default_permissions = ()
        verbose_name_plural = "parked"
        indexes = [
            models.Index(fields=["partition", "key"], condition=Q(holds=True), name="outbox_holds"),
            models.Index(fields=["state", "message"], name="outbox_parked_state"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in PARKED]), name="outbox_parked_state_known"
            ),
            models.CheckConstraint(
                condition=Q(holds=False) | (Q(state="dead") & ~Q(key="")), name="outbox_parked_holds_if_dead"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.state} {self.message_id}"
