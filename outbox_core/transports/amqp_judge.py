"""What a refusal by the broker means: for one message, or for a connection, in words for people."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from pika import exceptions

from outbox_core.errors import Unroutable
from outbox_core.transports.base import Outcome, Send

Verdict = tuple[Outcome, str, str]  # outcome, error class, one sentence

REFUSALS = {403: "AccessRefused", 404: "ExchangeNotFound", 406: "PreconditionFailed"}
OF_THE_CONTENT = ("header", "propert", "expiration", "user_id", "delivery mode")


def judge(send: Send, code: int, text: str) -> Verdict:
    """Why the broker closed a channel on which `send` alone was open."""
    if code == 311 or (code == 406 and "size" in text and "larger" in text):
        return (
            Outcome.INVALID,
            "MessageTooLarge",
            f"{len(send.body)} bytes are too many: {code} {text} ({where(send)})",
        )
    if code == 406 and any(word in text.lower() for word in OF_THE_CONTENT):
        return (
            Outcome.INVALID,
            "BadProperty",
            f"The broker does not take a header or property: {code} {text} ({where(send)})",
        )
    return refusal(send, code, text)


def refusal(send: Send, code: int, text: str, error: str = "") -> Verdict:
    """The broker refused the message, or its exchange; that may heal."""
    return (
        Outcome.REFUSED,
        error or REFUSALS.get(code, "ChannelClosed"),
        f"The broker refused it: {code} {text} ({where(send)})",
    )


def returned(send: Send) -> Verdict:
    """The broker took the message and gave it back, since no queue is bound."""
    return Outcome.RETURNED, Unroutable.__name__, str(Unroutable(send.exchange, send.routing_key))


def where(send: Send) -> str:
    return f'exchange "{send.exchange}", routing key "{send.routing_key}"'


def explain(error: BaseException | None) -> str:
    """One sentence for why a connection failed or ended. Never holds the password."""
    if isinstance(error, exceptions.ConnectionClosedByBroker):
        return f"the broker closed the connection: {error.reply_code} {error.reply_text}"
    if isinstance(error, exceptions.AMQPHeartbeatTimeout):
        return "no heartbeat from the broker"
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, exceptions.ProbableAuthenticationError):
            return "the broker refused user or password"
        if isinstance(cause, exceptions.ProbableAccessDeniedError):
            return "the broker refused the virtual host to this user"
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno) if cause.errno in errno.errorcode else str(cause)
    last = causes[-1] if causes else None
    return f"{type(last).__name__}: {last}"[:300] if last else "the connection ended"


def _causes(error: object) -> Iterator[BaseException]:
    """The error and what stands inside it; pika nests the causes of a failed connect as arguments."""
    if not isinstance(error, BaseException):
        return
    yield error
    inner = getattr(error, "exceptions", None) or getattr(error, "exception", None) or error.args
    for one in inner if isinstance(inner, list | tuple) else (inner,):
        yield from _causes(one)
