"""From which table a selection is read, in which order, and with which conditions.

*Dispatched* is read from Dispatch, *pending* and *retrying* from Pending, parked states from Parked, all from Message.
A key, a correlation or ids have an index of their own on Message, so those are read from there whatever the state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q

from outbox_core.clock import database_now
from outbox_core.errors import InvalidMessage
from outbox_core.models import Dispatch, FailedAttempt, Message, Parked, Pending
from outbox_core.operations.filters import Selection
from outbox_core.states import PARKED, QUEUED, State

# Row ids follow commit times but for transactions that overlap; this much more is searched at both ends.
OVERLAP = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Window:
    """Some candidates beside each other. `end`: the row id that the next window begins after; None at the end."""

    rows: Any
    end: int | None
    field: str

    def found(self, limit: int | None) -> list[tuple[int, int]]:
        """(row id of the driving table, row id of the message) of those that match, up to `limit`."""
        return list(self.rows.values_list("pk", self.field)[:limit])


@dataclass(frozen=True, slots=True)
class Driver:
    """`candidates` are in an index's order; `condition` picks from them."""

    letter: str
    candidates: Any
    condition: Q
    field: str  # of the candidates: the message's row id
    using: str

    @classmethod
    def choose(cls, selection: Selection, using: str) -> Driver:
        """The table that finds this selection fastest. Raises InvalidMessage for an unknown state."""
        if selection.state and selection.state not in list(State):
            raise InvalidMessage("state", ", ".join(State), selection.state)
        since, until = _range(selection, using)
        state = selection.state
        if selection.key or selection.correlation or selection.ids:
            return _from_messages(selection, since, until, using)
        if state in QUEUED:
            return _from_queue("p", Pending.objects.using(using), _failures(state), selection, since, until)
        if state in PARKED:
            return _from_queue(
                "k", Parked.objects.using(using).filter(state=state), Q(), selection, since, until
            )
        if state == State.DISPATCHED and until is None:
            return _from_dispatches(selection, since, using)
        return _from_messages(selection, since, until, using)

    def window(self, position: int | None, size: int, newer: bool = False) -> Window:
        """The next `size` candidates beyond `position`, older ones first to last, or newer ones."""
        beyond = self.candidates.order_by("pk" if newer else "-pk")
        if position is not None:
            beyond = beyond.filter(**{"pk__gt" if newer else "pk__lt": position})
        end = beyond.values_list("pk", flat=True)[size - 1 : size].first()
        within = beyond if end is None else beyond.filter(**{"pk__lte" if newer else "pk__gte": end})
        return Window(within.filter(self.condition), end, self.field)

    def messages(self, found: list[tuple[int, int]]) -> list[Message]:
        """The messages of these rows, in their order, without payload and headers."""
        rows = Message.objects.using(self.using).defer("payload", "headers").in_bulk([m for _, m in found])
        return [rows[m] for _, m in found if m in rows]

    def cursor(self, position: int | None) -> str:
        return f"{self.letter}{position}"

    def time_of(self, position: int | None) -> datetime | None:
        """When the message at this place was committed."""
        message = self.candidates.model.objects.using(self.using).filter(pk=position).values(self.field)
        found = Message.objects.using(self.using).filter(pk__in=message).values_list("created_at", flat=True)
        return found.first()


def _range(selection: Selection, using: str) -> tuple[datetime | None, datetime | None]:
    until = selection.until
    if selection.older_than is not None:
        limit = database_now(using) - timedelta(seconds=selection.older_than)
        until = limit if until is None else min(until, limit)
    return selection.since, until


def _failures(state: str) -> Q:
    return Q(failures=0) if state == State.PENDING else Q(failures__gt=0)


def _from_queue(
    letter: str, rows: Any, condition: Q, selection: Selection, since: datetime | None, until: datetime | None
) -> Driver:  # fmt: skip
    condition &= _text("type", selection.type) & _text("destination", selection.destination)
    if selection.error:
        condition &= _parked_error(selection.error) if letter == "k" else _pending_error(selection.error)
    rows = rows.filter(**_bounds("pk", since, until, rows.db))
    return Driver(letter, rows, condition & _committed("message__", since, until), "message_id", rows.db)


def _from_dispatches(selection: Selection, since: datetime | None, using: str) -> Driver:
    rows = Dispatch.objects.using(using)
    if since is not None:  # a message is not sent before it is committed
        first = rows.filter(at__gte=since).order_by("at", "id").values_list("pk", flat=True).first()
        rows = rows.filter(pk__gte=first) if first is not None else rows.none()
    later = rows.model.objects.using(using).filter(message=OuterRef("message"), pk__gt=OuterRef("pk"))
    condition = ~Exists(later) & _only_dispatched("message_id", using) & _committed("message__", since, None)
    condition &= _text("message__type", selection.type) & _text("message__destination", selection.destination)
    if selection.error:
        condition &= _failed_with(selection.error, "message_id", using)
    return Driver("d", rows, condition, "message_id", using)


def _from_messages(
    selection: Selection, since: datetime | None, until: datetime | None, using: str
) -> Driver:  # fmt: skip
    rows = Message.objects.using(using).filter(**_bounds("pk", since, until, using))
    indexed = {"key": selection.key, "correlation_id": selection.correlation}
    rows = rows.filter(**{field: value for field, value in indexed.items() if value})
    if selection.ids:
        rows = rows.filter(message_id__in=selection.ids)
    if selection.type and "*" not in selection.type:
        rows = rows.filter(type=selection.type)
    condition = _text("type", selection.type) & _text("destination", selection.destination)
    condition &= _committed("", since, until) & _in_state(selection.state, selection.error, using)
    return Driver("m", rows, condition, "pk", using)


def _in_state(state: str, error: str, using: str) -> Q:
    if state in QUEUED:
        queued = Pending.objects.using(using).filter(_failures(state), message=OuterRef("pk"))
        return Q(Exists(queued.filter(_pending_error(error)) if error else queued))
    queued = Pending.objects.using(using).filter(message=OuterRef("pk"))
    if state in PARKED:
        parked = Parked.objects.using(using).filter(message=OuterRef("pk"), state=state)
        return Q(Exists(parked.filter(_parked_error(error)) if error else parked)) & ~Q(Exists(queued))
    condition = Q()
    if state == State.DISPATCHED:
        sent = Dispatch.objects.using(using).filter(message=OuterRef("pk"))
        condition = Q(Exists(sent)) & _only_dispatched("pk", using)
    return condition & _failed_with(error, "pk", using) if error else condition


def _only_dispatched(field: str, using: str) -> Q:
    queued = Pending.objects.using(using).filter(message=OuterRef(field))
    parked = Parked.objects.using(using).filter(message=OuterRef(field))
    return ~Q(Exists(queued)) & ~Q(Exists(parked))


def _bounds(field: str, since: datetime | None, until: datetime | None, using: str) -> dict[str, int]:
    """The range of row ids that holds what was committed between the two times. Index: message_created."""
    by_time = Message.objects.using(using).order_by("created_at", "id").values_list("pk", flat=True)
    found: dict[str, int] = {}
    if until is not None:
        last = by_time.filter(created_at__lte=until + OVERLAP).last()
        found[f"{field}__lte"] = last if last is not None else 0
    if since is not None:
        first = by_time.filter(created_at__gte=since - OVERLAP).first()
        if first is not None:
            found[f"{field}__gte"] = first
    return found


def _committed(prefix: str, since: datetime | None, until: datetime | None) -> Q:
    condition = Q()
    if since is not None:
        condition &= Q(**{f"{prefix}created_at__gte": since})
    return condition if until is None else condition & Q(**{f"{prefix}created_at__lte": until})


def _text(field: str, wanted: str) -> Q:
    """Equal, or like a pattern in which `*` stands for any text."""
    if not wanted:
        return Q()
    if "*" not in wanted:
        return Q(**{field: wanted})
    pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
    return Q(**{f"{field}__regex": f"^{pattern}$"})


def _pending_error(error: str) -> Q:
    return Q(error_class=error) | Q(last_error__icontains=error)


def _parked_error(error: str) -> Q:
    return Q(fingerprint=error) | Q(error_class=error) | Q(error__icontains=error)


def _failed_with(error: str, field: str, using: str) -> Q:
    failed = FailedAttempt.objects.using(using).filter(message=OuterRef(field))
    return Q(Exists(failed.filter(Q(fingerprint=error) | Q(error_class=error) | Q(detail__icontains=error))))
