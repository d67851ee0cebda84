"""The broker's exchange, queues and bindings against those of the code: look, or put right what can be put right.

RabbitMQ says what differs only when something is declared with other properties than it has, and closes the channel
over it; so each question has a channel of its own. Nothing that exists is changed or deleted: a queue that differs
may hold messages, so a person decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pika
from pika import exceptions

from outbox_core.errors import TransportError
from outbox_core.transports.amqp_feed import queue_arguments
from outbox_core.transports.amqp_judge import explain
from outbox_core.transports.base import Difference, Queue

MISSING, REFUSED = 404, 403

Ask = Callable[[Any], object]  # something done on a channel


def check_topology(
    parameters: pika.URLParameters, exchange: str, queues: Sequence[Queue]
) -> list[Difference]:
    """What is missing or differs. Nothing is created, unless someone deletes it between our two questions about it."""
    with _connected(parameters) as connection:
        found = []
        if exchange:  # the default exchange, whose name is empty, is always there
            found += _check(
                connection, "exchange", exchange, _look_for_exchange(exchange), _declare_exchange(exchange)
            )
        for queue in queues:
            found += _check(connection, "queue", queue.name, _look_for_queue(queue), _declare_queue(queue))
        return found


def apply_topology(
    parameters: pika.URLParameters,
    exchange: str,
    queues: Sequence[Queue],
    gone: Sequence[tuple[str, str]] = (),
) -> list[Difference]:
    """Declare and bind, and unbind `gone` (queue, pattern). Idempotent. What the broker refused comes back."""
    with _connected(parameters) as connection:
        left = _refused(connection, "exchange", exchange, _declare_exchange(exchange)) if exchange else []
        for queue in queues:
            refused = _refused(connection, "queue", queue.name, _declare_queue(queue))
            left += refused
            for pattern in () if refused or not exchange else queue.patterns:
                bind = functools.partial(_bind, queue=queue.name, exchange=exchange, pattern=pattern)
                left += _refused(connection, "binding", queue.name, bind, about=f"{exchange}:{pattern}: ")
        for name, pattern in gone:
            unbind = functools.partial(_unbind, queue=name, exchange=exchange, pattern=pattern)
            left += _refused(
                connection, "binding", name, unbind, fine=(MISSING,), about=f"{exchange}:{pattern}: "
            )
        return left


@contextmanager
def _connected(parameters: pika.URLParameters) -> Iterator[pika.BlockingConnection]:
    where = f"RabbitMQ at {parameters.host}:{parameters.port}"
    try:
        connection = pika.BlockingConnection(parameters)
    except Exception as error:
        raise TransportError(f"{where} can't be reached: {explain(error)}") from error
    try:
        yield connection
    except exceptions.AMQPConnectionError as error:
        raise TransportError(f"{where} was lost: {explain(error)}") from error
    finally:
        if connection.is_open:
            connection.close()


def _check(
    connection: pika.BlockingConnection, kind: str, name: str, look: Ask, declare: Ask
) -> list[Difference]:
    answer = _ask(connection, look)
    if answer is None:
        # It exists. Only whoever may configure it can ask what it is like.
        return _refused(connection, kind, name, declare, fine=(REFUSED,))
    code, text = answer
    return [Difference(kind, name, "does not exist" if code == MISSING else f"{code} {text}")]


def _refused(
    connection: pika.BlockingConnection,
    kind: str,
    name: str,
    ask: Ask,
    *,
    fine: tuple[int, ...] = (),
    about: str = "",
) -> list[Difference]:
    answer = _ask(connection, ask)
    if answer is None or answer[0] in fine:
        return []
    code, text = answer
    return [Difference(kind, name, f"{about}{code} {text}")]


def _ask(connection: pika.BlockingConnection, ask: Ask) -> tuple[int, str] | None:
    """The broker's refusal (code, text), or None if it did what was asked."""
    channel = connection.channel()
    try:
        ask(channel)
    except exceptions.ChannelClosedByBroker as error:
        return error.reply_code, error.reply_text
    channel.close()
    return None


def _look_for_exchange(exchange: str) -> Ask:
    return lambda channel: channel.exchange_declare(exchange, passive=True)


def _declare_exchange(exchange: str) -> Ask:
    return lambda channel: channel.exchange_declare(exchange, exchange_type="topic", durable=True)


def _look_for_queue(queue: Queue) -> Ask:
    return lambda channel: channel.queue_declare(queue.name, passive=True)


def _declare_queue(queue: Queue) -> Ask:
    return lambda channel: channel.queue_declare(queue.name, durable=True, arguments=queue_arguments(queue))


def _bind(channel: Any, *, queue: str, exchange: str, pattern: str) -> None:
    channel.queue_bind(queue, exchange, pattern)


def _unbind(channel: Any, *, queue: str, exchange: str, pattern: str) -> None:
    channel.queue_unbind(queue, exchange, pattern)
