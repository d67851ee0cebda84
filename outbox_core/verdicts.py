"""What a handler may raise to say how its message goes on, where neither success nor failure is true."""

from __future__ import annotations

from outbox_core.backoff import seconds
from outbox_core.errors import OutboxError


class RetryLater(OutboxError):
    """Raised by a handler that cannot act yet. It is no failure and does not count as one.

    `delay` is in seconds or a timedelta, at least 1 s.
    """

    def __init__(self, delay: object) -> None:
        self.delay = max(1.0, seconds(delay, "delay"))
        super().__init__(f"again in {self.delay:g} s")


class Reject(OutboxError):
    """Raised by a handler for a message that it will never accept: dead at once."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)
