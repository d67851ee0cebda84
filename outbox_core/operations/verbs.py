"""What a person may do with an outgoing message: retry, redispatch, mark, discard.

Buttons, admin and command line all call `act`. It locks in the order that everyone keeps (Message, the Lease of the
partition's owner, Partition, Pending and Parked), so no dispatcher can send what it discards; it checks the state
against what the caller saw; and it writes one audit row as the last statement of the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn
from uuid import UUID

from django.db import InternalError, OperationalError
from psycopg.errors import IdleInTransactionSessionTimeout, LockNotAvailable

from outbox_core.clock import ClockTimestamp, database_now
from outbox_core.errors import EffectMayRepeat, InvalidMessage, OutboxError, StateChanged
from outbox_core.models import Message, Operation, Parked, Pending
from outbox_core.operations import audit, dedupe
from outbox_core.operations.audit import Actor
from outbox_core.operations.facts import Facts, attempts_opened, gather, last_change
from outbox_core.operations.reception import may_repeat, unfinished
from outbox_core.operations.undone import GIVEN_UP
from outbox_core.operations.words import duration
from outbox_core.outbox import leases, queue
from outbox_core.sql import exclusive
from outbox_core.states import QUEUED, VERBS, State
from outbox_core.wakeup import CHANGED, PENDING, announce

__all__ = ["Acted", "Actor", "act"]

_TOO_SLOW: dict[type[BaseException | None], str] = {
    LockNotAvailable: "another session holds a lock that this needs",
    IdleInTransactionSessionTimeout: "this server was too busy to go on with it, and the database gave its locks away",
}
"""What ends an act for taking too long (see `exclusive`): nothing of it was committed."""

TRIES = 20  # a partition changes hands at most a few times a second


@dataclass(frozen=True, slots=True)
class Acted:
    """What became of an act. `unchanged`: there was nothing to do (it is due already), and no audit row was written."""

    operation: Operation | None
    outcome: str  # done, unchanged
    state: str


def act(
    verb: str, message_id: UUID | str | int, *, actor: Actor, reason: str, version: str | None = None,
    using: str = "default", selection: Mapping[str, Any] | None = None, again: bool = False,
) -> Acted:  # fmt: skip
    """Do `verb` to one message. Effect and audit row commit together; a refusal changes and writes nothing.

    `message_id` is the message's UUID (or, as an int, its row id); `version` what the caller saw
    (`inspect.Standing.version`), None to act on whatever state it is in; `selection` the filter that chose it;
    `again` that a redispatch past the dedupe window may take effect a second time.

    Raises EffectMayRepeat without that `again`, StateChanged (who has it or changed it, since when), InvalidMessage
    for the reason or the verb, Message.DoesNotExist, and OutboxError if its partition keeps changing hands, another
    session holds a lock for longer than LEASE / 2, or this process stands still for so long.
    """
    if verb not in VERBS:
        raise InvalidMessage("verb", ", ".join(VERBS), verb)
    reason = audit.checked_reason(reason)
    for _ in range(TRIES):
        try:
            with exclusive(using):
                return _Act(verb, _locked(message_id, using), using).run(
                    actor, reason, version, selection, again
                )
        except leases.OwnerChanged:
            continue
        except (OperationalError, InternalError) as error:
            if why := _TOO_SLOW.get(type(error.__cause__)):
                raise OutboxError(
                    f"Message {message_id} was left alone: {why}; try again in a moment."
                ) from None
            raise
    raise OutboxError("The message's partition keeps changing hands; try again in a moment.")


def _locked(message_id: UUID | str | int, using: str) -> Message:
    wanted = {"pk": message_id} if isinstance(message_id, int) else {"message_id": _uuid(message_id)}
    messages = Message.objects.using(using).only(
        "message_id", "type", "key", "destination", "source", "created_at"
    )
    return messages.select_for_update(no_key=True).get(**wanted)


def _uuid(text: UUID | str) -> UUID:
    try:
        return text if isinstance(text, UUID) else UUID(text)
    except ValueError:
        raise Message.DoesNotExist(f'"{text}" is not a message id') from None


class _Act:
    """One verb on one locked message, inside its transaction."""

    def __init__(self, verb: str, message: Message, using: str) -> None:
        self.verb, self.message, self.using = verb, message, using
        self.partition = queue.partition_of(message.key, message.message_id)
        # Lease and Partition before Pending: a turn of the owner can't begin between the look and the act.
        self.owner = leases.lock_owner(using, self.partition)
        self.facts: Facts = gather(message, using, lock=True)
        self.may_repeat: list[str] | None = None  # at which consumers, past the dedupe window

    def run(
        self, actor: Actor, reason: str, version: str | None, selection: Mapping[str, Any] | None, again: bool
    ) -> Acted:  # fmt: skip
        self._refuse_if_in_flight()
        self._refuse_if_stale(version)
        self._refuse_if_no_such_pair()
        self._refuse_if_direct_or_scheduled()
        if self.verb == "redispatch":
            self._refuse_if_it_may_repeat(again)
        if self.verb == "retry" and self._is_due_or_aside():
            return Acted(None, "unchanged", self.facts.state)
        before = self._describe()
        state = self._effects[self.verb](self)
        return Acted(self._write_down(actor, reason, selection, before, state), "done", state)

    # Refusals, in the order in which they are told.

    def _refuse_if_in_flight(self) -> None:
        if self.owner and self.message.pk in self.owner.in_flight:
            self._refuse("it is being sent by", self.owner.name, self.owner.since)

    def _refuse_if_stale(self, version: str | None) -> None:
        if version is not None and version != self.facts.version:
            by, at = last_change(self.message, self.facts, self.using, since=version)
            self._refuse(f"it is {self.facts.state} now, changed by", by, at, "at")

    def _refuse_if_no_such_pair(self) -> None:
        if State(self.facts.state) not in VERBS[self.verb]:
            by, at = last_change(self.message, self.facts, self.using)
            why = f"{self.verb} is not for what is {self.facts.state}{self._at_a_consumer()}; last changed by"
            self._refuse(why, by, at, "at")

    def _at_a_consumer(self) -> str:
        """What helps instead, if it was sent and a consumer gave it up."""
        if self.facts.state != State.DISPATCHED:
            return ""
        open_ = unfinished([str(self.message.message_id)], self.using).get(str(self.message.message_id))
        if open_ is None or open_.state not in GIVEN_UP:
            return ""
        return f" (consumer {open_.consumer} gave it up: redispatch it once the cause is mended)"

    def _refuse_if_direct_or_scheduled(self) -> None:
        pending = self.facts.pending
        if pending is None or pending.available_at is None:
            return
        now = database_now(self.using)
        if pending.direct and pending.available_at > now:
            self._refuse(
                "its producer may be sending it directly:", self.message.source, self.message.created_at
            )
        if pending.scheduled and self.verb in ("retry", "redispatch"):
            due = f"{pending.available_at:%Y-%m-%d %H:%M:%S} UTC"
            self._refuse(f"it is scheduled for {due} by", self.message.source, self.message.created_at, "at")

    def _refuse_if_it_may_repeat(self, again: bool) -> None:
        self.may_repeat = may_repeat(self.message, self.facts, self.using)
        if self.may_repeat is not None and not again:
            window = duration(dedupe.window().total_seconds())
            raise EffectMayRepeat(self.message.message_id, self.may_repeat, window)

    def _refuse(self, why: str, by: str, at: datetime | None, when: str = "since") -> NoReturn:
        since = f" {when} {at:%Y-%m-%d %H:%M:%S} UTC" if at else ""
        raise StateChanged(
            f"Message {self.message.message_id} was left alone: {why} {by or 'someone'}{since}.",
            actual_state=self.facts.state, by=by, at=at,
        )  # fmt: skip

    def _is_due_or_aside(self) -> bool:
        """Whether a retry has nothing to change: what is due is due, and what is set aside waits for another (but
        what waits for its destination is tried)."""
        pending = self.facts.pending
        if pending is None:
            return False
        if pending.stranded:
            return False
        return pending.available_at is None or pending.available_at <= database_now(self.using)

    # Effects: each returns the new state.

    def _retry(self) -> State:
        pending, parked = self.facts.pending, self.facts.parked
        if pending is not None:
            Pending.objects.using(self.using).filter(pk=pending.pk).update(
                available_at=ClockTimestamp(), stranded=False
            )
            return State(self.facts.state)
        assert parked is not None
        parked.delete(using=self.using)
        self._enqueue(
            position=parked.position, attempts=parked.attempts, first_position=parked.first_position,
            # It held nothing back (ON_DEAD = "skip"), so later ones of its key may have passed it.
            late=parked.late or (bool(self.message.key) and not parked.holds),
        )  # fmt: skip
        self._promote()
        return State.PENDING

    def _redispatch(self) -> State:
        first, parked = self.facts.first_dispatch, self.facts.parked
        opened = attempts_opened(self.message.pk, self.facts.parked, self.using)
        place = first.position if first else None  # it goes along with every send: that of the first
        if parked:
            if place is None and opened:  # maybe sent, never confirmed
                place = parked.position if parked.first_position is None else parked.first_position
            parked.delete(using=self.using)
        self._enqueue(
            position=queue.next_position(self.using), attempts=opened,
            first_position=place, late=bool(self.message.key) and first is None,
        )  # fmt: skip
        return State.PENDING

    def _park(self) -> State:
        state = VERBS[self.verb][State(self.facts.state)]
        pending, parked = self.facts.pending, self.facts.parked
        if pending is not None:
            Parked.objects.using(self.using).create(
                message_id=self.message.pk, state=state, partition=pending.partition, key=pending.key,
                position=pending.position, first_position=pending.first_position, late=pending.late,
                type=pending.type, destination=pending.destination, holds=False,
                attempts=pending.attempts, failures=pending.failures, error_class=pending.error_class,
                error=pending.last_error,
            )  # fmt: skip
            pending.delete(using=self.using)
        else:
            assert parked is not None
            rows = Parked.objects.using(self.using).filter(pk=parked.pk)
            rows.update(state=state, holds=False, at=ClockTimestamp())
        self._promote()
        return state

    _effects: dict[str, Callable[[_Act], State]] = {
        "retry": _retry, "redispatch": _redispatch, "mark": _park, "discard": _park,
    }  # fmt: skip

    def _enqueue(self, *, position: int, attempts: int, first_position: int | None, late: bool) -> None:
        Pending.objects.using(self.using).create(
            message_id=self.message.pk, partition=self.partition, key=self.message.key, position=position,
            first_position=first_position, type=self.message.type, destination=self.message.destination,
            available_at=ClockTimestamp(), late=late, attempts=attempts, cause="operator",
        )  # fmt: skip

    def _promote(self) -> None:
        if self.message.key:
            queue.promote(self.using, [(self.partition, self.message.key)])

    # The record.

    def _describe(self) -> dict[str, Any]:
        row = self.facts.pending or self.facts.parked
        told: dict[str, Any] = {"state": str(self.facts.state), "version": self.facts.version}
        if row is not None:
            told |= {"position": row.position, "attempts": row.attempts, "failures": row.failures}
        if self.facts.parked is not None:
            told["holds"] = self.facts.parked.holds
        return told

    def _write_down(
        self, actor: Actor, reason: str, selection: Mapping[str, Any] | None, before: dict[str, Any], state: State
    ) -> Operation:  # fmt: skip
        announce(self.using, CHANGED)
        if self.verb in ("retry", "redispatch") or self.message.key:
            announce(self.using, PENDING)
        # The chain's lock comes last, so that no one waits for another lock while holding it; the queue row learns
        # the id between the two, and it is locked by this transaction already. The audit row is the last statement.
        number = audit.reserve(self.using)
        in_backoff = self.facts.pending is not None and state in QUEUED
        table = Pending if state in QUEUED else Parked
        if not in_backoff:  # its next send is the dispatcher's own, not a person's
            table.objects.using(self.using).filter(pk=self.message.pk).update(operation=number)
        row = table.objects.using(self.using).filter(pk=self.message.pk).values("position", "attempts").get()
        after = {"state": str(state), **row}
        if self.may_repeat is not None:
            after["may_repeat"] = self.may_repeat
        return audit.record(
            self.using, id=number, actor=actor, verb=self.verb, reason=reason, message_id=str(self.message.message_id),
            selection=selection, before=before, after=after,
        )  # fmt: skip
