"""Messages in every state, and owners of partitions, as rows: what the tests of operations start from."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import transaction

from outbox_core.clock import ClockTimestamp, database_now
from outbox_core.models import Dispatch, Handling, Lease, Message, Parked, Partition, Pending, Worker
from outbox_core.operations.verbs import Actor
from outbox_core.outbox import leases, queue
from outbox_core.outbox.producer import publish

ANA = Actor("7", "ana", "dashboard", "10.0.0.7")


def pending(type: str = "order.paid", key: str = "", payload: Any = None, **arguments: Any) -> Message:
    """A message that was just published, in a transaction of its own."""
    with transaction.atomic():
        message = publish(type, {"n": 1} if payload is None else payload, key=key, **arguments)
    return Message.objects.get(pk=message.pk)


def retrying(key: str = "", failures: int = 2, wait: float = 300, type: str = "order.paid") -> Message:
    """A message in back-off for `wait` more seconds."""
    message = pending(type, key)
    due = database_now() + timedelta(seconds=wait)
    Pending.objects.filter(pk=message.pk).update(
        available_at=due, failures=failures, attempts=failures, error_class="Unroutable",
        last_error=f'no queue is bound to "{type}" on exchange "events"',
    )  # fmt: skip
    return message


def aside(key: str, type: str = "order.paid") -> Message:
    """A message that was set aside behind an earlier one of its key."""
    message = pending(type, key)
    Pending.objects.filter(pk=message.pk).update(available_at=None)
    return message


def dispatched(
    key: str = "", attempts: int = 1, type: str = "order.paid", worker: str = "dispatcher-a"
) -> Message:
    """A message whose send was confirmed, once."""
    message = pending(type, key)
    row = Pending.objects.get(pk=message.pk)
    confirm(message, row.position, attempts, worker)
    return message


def confirm(message: Message, position: int, attempt: int, worker: str = "dispatcher-a") -> Dispatch:
    """What a settle does for one confirm."""
    sent = Dispatch.objects.create(
        message=message, worker=worker, attempt=attempt, position=position, cause="first"
    )  # fmt: skip
    Pending.objects.filter(pk=message.pk).delete()
    return sent


def dead(key: str = "", holds: bool | None = None, attempts: int = 10, type: str = "order.paid") -> Message:
    """A message that was given up; a keyed one holds its key unless told otherwise."""
    message = pending(type, key)
    row = Pending.objects.get(pk=message.pk)
    Parked.objects.create(
        message=message, state="dead", partition=row.partition, key=key, position=row.position, type=type,
        destination=row.destination, holds=bool(key) if holds is None else holds, attempts=attempts,
        failures=attempts, error_class="Unroutable", fingerprint="f" * 16,
        error=f'no queue is bound to "{type}" on exchange "events"',
    )  # fmt: skip
    row.delete()
    return message


def own(name: str = "dispatcher-a", in_flight: Iterable[Message] = (), seconds: float = 3600) -> Lease:
    """A dispatcher that owns every partition, and what it is sending."""
    lease = Lease.objects.create(
        name=name, until=database_now() + timedelta(seconds=seconds), turned_at=ClockTimestamp(),
        in_flight=leases.encode(m.pk for m in in_flight),
    )  # fmt: skip
    Partition.objects.update(lease=lease.token)
    return Lease.objects.get(pk=lease.pk)


def partition(message: Message) -> int:
    return queue.partition_of(message.key, message.message_id)


def received(
    message: Message, state: str, consumer: str = "reports", error: str = "it broke", *, ago: float = 0,
    failures: int = 3,
) -> Handling:  # fmt: skip
    """A message that a consumer has received (`ago` seconds ago) and not done."""
    return Handling.objects.create(
        consumer=consumer, message_id=str(message.message_id), type=message.type, key=message.key, body=b"{}",
        digest=message.digest, state=state, attempts=3, failures=failures, error_class="ValueError", error=error,
        received_at=database_now() - timedelta(seconds=ago),
        available_at=database_now() + timedelta(seconds=60) if state == "retrying" else None,
    )  # fmt: skip


def stranded(count: int, type: str = "order.paid") -> list[Message]:
    """Messages that wait for a destination that fails."""
    messages = [pending(type) for _ in range(count)]
    Pending.objects.filter(pk__in=[m.pk for m in messages]).update(available_at=None, stranded=True)
    return messages


def worker(kind: str = "dispatcher", name: str = "dispatcher-a", silent: float = 0, **fields: Any) -> Worker:
    """A worker that was last heard of `silent` seconds ago."""
    fields.setdefault("broker", "connected")
    return Worker.objects.create(
        kind=kind, name=name, host="web-1", pid=4711, version="1",
        heartbeat=database_now() - timedelta(seconds=silent), **fields,
    )  # fmt: skip
