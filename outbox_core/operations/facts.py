"""What is known of one message, and the version that a verb is checked against.

State is Pending before Parked before Dispatch: a redispatched message stands in two of them, and the queue decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Max

from outbox_core.models import Dispatch, FailedAttempt, Message, Operation, Parked, Pending
from outbox_core.states import VERBS, State


@dataclass(frozen=True, slots=True)
class Facts:
    """The rows that decide a message's state, read at one time."""

    pending: Pending | None
    parked: Parked | None
    first_dispatch: Dispatch | None
    last_dispatch: Dispatch | None
    last_operation: Operation | None

    @property
    def state(self) -> State:
        return derive(self.pending, self.parked)

    @property
    def version(self) -> str:
        return version(self.state, self.last_dispatch, self.last_operation)


def derive(pending: Pending | None, parked: Parked | None) -> State:
    """The state that these rows make. With neither, the message was dispatched."""
    if pending is not None:
        return State.RETRYING if pending.failures else State.PENDING
    return State(parked.state) if parked is not None else State.DISPATCHED


def version(state: str, dispatch: Dispatch | int | None, operation: Operation | int | None) -> str:
    """`state.dispatch.operation`: changes with the state, a confirmed send or an act, not with a further failure."""
    numbers = (row.pk if isinstance(row, Dispatch | Operation) else row or 0 for row in (dispatch, operation))
    return ".".join([state, *map(str, numbers)])


def gather(message: Message, using: str, *, lock: bool = False) -> Facts:
    """Read what is known of `message`; `lock` keeps Pending and Parked until the transaction ends."""
    pendings, parkeds = Pending.objects.using(using), Parked.objects.using(using)
    pending = (pendings.select_for_update() if lock else pendings).filter(pk=message.pk).first()
    parked = (parkeds.select_for_update() if lock else parkeds).filter(pk=message.pk).first()
    dispatches = Dispatch.objects.using(using).filter(message=message.pk)
    operations = acts_on([message.message_id], using)
    last = dispatches.order_by("-id").first()
    return Facts(
        pending=pending,
        parked=parked,
        first_dispatch=dispatches.order_by("id").first() if last else None,
        last_dispatch=last,
        last_operation=operations.order_by("-id").first(),
    )


def attempts_opened(message: int, parked: Parked | None, using: str) -> int:
    """How many sends of a message that is not queued were opened, as far as anything tells of them. The newest
    Dispatch need not be the last of them: the confirm of an earlier one may have come late."""
    sent = Dispatch.objects.using(using).filter(message=message)
    failed = FailedAttempt.objects.using(using).filter(message=message, consumer="")
    numbers = [rows.aggregate(most=Max("attempt"))["most"] or 0 for rows in (sent, failed)]
    return max(parked.attempts if parked else 0, *numbers)


def versions(pks: Iterable[int], using: str) -> dict[int, tuple[UUID, str]]:
    """Message id and version of each message that exists, by row id, in five queries."""
    pks = list(pks)
    ids = dict(Message.objects.using(using).filter(pk__in=pks).values_list("pk", "message_id"))
    pending = dict(Pending.objects.using(using).filter(pk__in=pks).values_list("pk", "failures"))
    parked = dict(Parked.objects.using(using).filter(pk__in=pks).values_list("pk", "state"))
    dispatches = newest(Dispatch.objects.using(using).filter(message__in=pks), "message")
    operations = newest(acts_on(ids.values(), using), "message_id")
    found: dict[int, tuple[UUID, str]] = {}
    for pk, id_ in ids.items():
        state = parked.get(pk, State.DISPATCHED)
        if pk in pending:
            state = State.RETRYING if pending[pk] else State.PENDING
        found[pk] = id_, version(state, dispatches.get(pk), operations.get(str(id_)))
    return found


def acts_on(message_ids: Iterable[UUID], using: str) -> Any:
    """The operations that changed these messages. Revealing a payload is an operation too, and changes nothing."""
    return Operation.objects.using(using).filter(
        message_id__in=[str(id_) for id_ in message_ids], verb__in=tuple(VERBS)
    )


def newest(rows: Any, field: str) -> dict[Any, int]:
    """The highest id per value of `field`."""
    return dict(rows.order_by().values_list(field).annotate(newest=Max("id")))


def last_change(
    message: Message, facts: Facts, using: str, since: str | None = None
) -> tuple[str, datetime | None]:
    """Who brought the message to where it is, and when; of what is newer than the version `since`, if given."""
    _, seen_dispatch, seen_operation = _parts(since)
    changes: list[tuple[datetime, str]] = []
    operation, dispatch = facts.last_operation, facts.last_dispatch
    if operation is not None and operation.pk != seen_operation:
        changes.append((operation.at, operation.actor))
    if dispatch is not None and dispatch.pk != seen_dispatch:
        changes.append((dispatch.at, dispatch.worker))
    if changes:
        at, by = max(changes)
        return by, at
    failed = (
        FailedAttempt.objects.using(using).filter(message=message.pk, consumer="").order_by("-id").first()
    )
    if failed is not None:
        return failed.worker, facts.parked.at if facts.parked else failed.at
    return message.source, message.created_at


def _parts(seen: str | None) -> tuple[str, int, int]:
    state, _, rest = (seen or "").partition(".")
    dispatch, _, operation = rest.partition(".")
    return state, int(dispatch) if dispatch.isdecimal() else 0, int(operation) if operation.isdecimal() else 0
