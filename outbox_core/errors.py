"""The errors that Outboard raises. Each carries its facts as attributes, not only as text."""

from __future__ import annotations

from datetime import datetime


class OutboxError(Exception):
    """The root of every error that this package raises on purpose."""


class NotInTransaction(OutboxError):
    """`publish()` was called outside a transaction, so nothing could make it atomic."""


class InvalidMessage(OutboxError, ValueError):
    """A message breaks a limit or has no JSON form.

    `field` names the argument, for a payload with the path inside it (`payload.lines[2].price`);
    `limit` is the rule and `actual` what was found, both as text or a number.
    """

    def __init__(self, field: str, limit: object, actual: object, reason: str = "") -> None:
        self.field, self.limit, self.actual = field, limit, actual
        super().__init__(reason or f"{field}: {actual}, but the limit is {limit}")


class MessageConflict(OutboxError):
    """The same message id was published before with another type, key or payload."""

    def __init__(self, message_id: object) -> None:
        self.message_id = message_id
        super().__init__(f"message id {message_id} was already published with other content")


class StateChanged(OutboxError):
    """A verb was refused: the message is not, or no longer, in the state that the caller saw.

    `actual_state` is the state now; `by` who brought it there or is sending it; `at` since when.
    """

    def __init__(self, reason: str, *, actual_state: str, by: str = "", at: datetime | None = None) -> None:
        self.actual_state, self.by, self.at = actual_state, by, at
        super().__init__(reason)


class EffectMayRepeat(OutboxError):
    """A second send was refused, since its dedupe window is over and no one said that the effect may happen again.

    `consumers` are those whose receipt may be gone.
    """

    def __init__(self, message_id: object, consumers: list[str], window: str) -> None:
        self.consumers = consumers
        named = (
            " and ".join(filter(None, [", ".join(consumers[:-1]), *consumers[-1:]])) or "other installations"
        )
        super().__init__(
            f"Message {message_id} was left alone: it was last sent before the dedupe window of {window}, so it may "
            f"take effect again at {named}; say that it may (again)."
        )


class Unroutable(OutboxError):
    """The broker returned a message: no queue is bound for its routing key."""

    def __init__(self, exchange: str, routing_key: str) -> None:
        self.exchange, self.routing_key = exchange, routing_key
        super().__init__(f'Unroutable: no queue is bound to "{routing_key}" on exchange "{exchange}"')


class TimedOut(OutboxError):
    """A workflow's `wait_for` reached its timeout before the message came."""


class Diverged(OutboxError):
    """A replayed workflow asked for something else than its history records."""

    def __init__(self, expected: object, actual: object) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(f"history records {expected}, the code asked for {actual}")


class TransportError(OutboxError):
    """The broker could not be reached, or refused a declaration."""
