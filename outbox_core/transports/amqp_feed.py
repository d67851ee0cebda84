"""One consumed queue over AMQP: its channel, its declaration and bindings, and what it holds unacked.

Whatever ends the channel, it is opened again: a queue that was deleted is declared anew, a mismatch is tried again
in case a person has resolved it, a handler that was slower than the broker's consumer timeout starts over.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

from pika import exceptions

from outbox_core import backoff
from outbox_core.transports.amqp_wire import Wire
from outbox_core.transports.base import Delivery, Queue

log = logging.getLogger("outbox.transport")

AGAIN_BASE, AGAIN_CAP = 0.5, 15.0  # seconds: ceilings of the first and of every wait before trying again
RENEW = 30.0  # seconds between two looks for the main exchange: someone may have deleted it
REFUSED, MISSING, MISMATCH = 403, 404, 406

Later = Callable[[float, Callable[[], None]], Any]


def queue_arguments(queue: Queue) -> dict[str, Any] | None:
    """What a queue is declared with, besides being durable."""
    return {"x-single-active-consumer": True} if queue.single_active else None


class Tenure:
    """The life of one channel. A delivery's handle names it: an ack for a channel that is gone does nothing."""

    __slots__ = ("alive", "channel", "unacked")

    def __init__(self, channel: Any) -> None:
        self.channel, self.alive = channel, True
        self.unacked: dict[int, None] = {}  # delivery tags, ascending

    def ack(self, tags: set[int]) -> None:
        """Ack these; the oldest ones, if nothing stands between them, with one frame."""
        tags &= self.unacked.keys()
        run = []
        for tag in self.unacked:
            if tag not in tags:
                break
            run.append(tag)
        if len(run) > 1:
            self.channel.basic_ack(run[-1], multiple=True)
            self._forget(run)
            tags -= set(run)
        for tag in sorted(tags):
            self.channel.basic_ack(tag)
        self._forget(tags)

    def release(self, tags: set[int]) -> None:
        """Give these back to the queue, the newest first, so that they keep their order there."""
        tags &= self.unacked.keys()
        for tag in sorted(tags, reverse=True):
            self.channel.basic_nack(tag, requeue=True)
        self._forget(tags)

    def _forget(self, tags: Iterable[int]) -> None:
        for tag in tags:
            del self.unacked[tag]


class Feed:
    """Keeps one queue consumed over the connection `wire`. `deliver` gets each message, `report(queue, problem)`
    why it is not consumed (an empty text once it is)."""

    def __init__(
        self, wire: Wire, exchange: str, queue: Queue, *,
        deliver: Callable[[Delivery], None], report: Callable[[str, str], None], later: Later,
    ) -> None:  # fmt: skip
        self._wire, self._exchange, self._queue = wire, exchange, queue
        self._deliver, self._report, self._later = deliver, report, later
        self._tenure: Tenure | None = None
        self._declares = True
        self._consuming = self._renews = False
        self._exchange_problem = ""  # what is wrong with the main exchange, while the queue is consumed
        self._failures = 0
        self._rng = random.Random()

    def begin(self) -> None:
        """Open a channel, declare, bind and consume, one after the other. A refusal closes the channel."""
        self._consuming = False
        try:
            channel: Any = self._wire.channel(on_open_callback=self._set_up)
        except exceptions.NoFreeChannels:
            self._try_again("no channel is free on this connection")
        except exceptions.ConnectionWrongStateError:
            pass  # the connection is going down, and the next one begins anew
        else:
            channel.add_on_close_callback(self._closed)
            channel.add_on_cancel_callback(self._cancelled)
            self._tenure = Tenure(channel)

    def end(self) -> None:
        """The connection is gone: acks for what came over it do nothing from now on."""
        if self._tenure is not None:
            self._tenure.alive = False

    def _set_up(self, channel: Any) -> None:
        try:
            self._ask(channel)
        except Exception as error:  # raised further it would end the connection of all queues
            self._report(self._queue.name, f"can't be asked for: {error}")

    def _ask(self, channel: Any) -> None:
        queue = self._queue
        if self._declares:
            if self._exchange and not self._exchange_problem:
                channel.exchange_declare(
                    self._exchange, exchange_type="topic", durable=True, callback=_answered
                )
            channel.queue_declare(
                queue.name, durable=True, arguments=queue_arguments(queue), callback=_answered
            )
            self._bind(channel)
        else:
            channel.queue_declare(queue.name, passive=True, callback=_answered)
        channel.basic_qos(prefetch_count=queue.prefetch, callback=_answered)
        channel.basic_consume(queue.name, self._came, callback=self._consumes)

    def _bind(self, channel: Any) -> None:
        for pattern in self._queue.patterns if self._exchange else ():
            channel.queue_bind(self._queue.name, self._exchange, pattern, callback=_answered)

    def _consumes(self, _frame: Any) -> None:
        self._consuming, self._failures = True, 0
        self._report(self._queue.name, self._exchange_problem)
        if self._exchange and not self._renews:
            self._renews = True
            self._later(RENEW, self._renew)

    def _came(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if self._tenure is not None and channel is self._tenure.channel:
            self._tenure.unacked[method.delivery_tag] = None
            self._deliver(read_delivery(self._tenure, self._queue.name, method, properties, body))

    def _cancelled(self, frame: Any) -> None:
        """The broker ended the consumption: the queue was deleted, or its node is gone."""
        name = self._queue.name
        log.warning("RabbitMQ cancelled the consumption of %s", name, extra={"action": "consumer_cancelled"})
        self.end()
        if self._tenure is not None and self._tenure.channel.is_open:
            self._tenure.channel.close()
        self._try_again()

    def _closed(self, channel: Any, reason: Any) -> None:
        if self._tenure is None or channel is not self._tenure.channel:
            return
        was_alive, self._tenure.alive = self._tenure.alive, False
        if not was_alive or not isinstance(reason, exceptions.ChannelClosedByBroker):
            return  # closed by us, or with its connection
        problem = f"{reason.reply_code} {reason.reply_text}"
        if self._consuming:
            name = self._queue.name
            log.warning(
                "RabbitMQ closed the channel of %s: %s", name, problem, extra={"action": "channel_closed"}
            )
            self._try_again()
        elif reason.reply_code == REFUSED and self._declares:
            self._declares = False  # may not declare; perhaps the queue is there already
            self.begin()
        elif (
            reason.reply_code == MISMATCH
            and "for exchange" in reason.reply_text
            and not self._exchange_problem
        ):
            self._exchange_problem = problem
            self.begin()
        else:
            self._declares, self._exchange_problem = True, ""
            self._try_again(problem)

    # Whether the main exchange is still there, asked on a channel of its own, so that no delivery suffers.

    def _renew(self, missing: bool = False) -> None:
        """Look for the exchange. If it is gone, or was a wrong one, its bindings are gone too: declare both anew.

        Not otherwise: during a deployment old code must not bind again what the new code has just unbound.
        """
        if not self._wire.is_open or not self._declares:
            return
        anew = missing or bool(self._exchange_problem)
        try:
            channel: Any = self._wire.channel(on_open_callback=self._bind_again if anew else self._look)
        except exceptions.NoFreeChannels:
            self._later(RENEW, self._renew)
        else:
            channel.add_on_close_callback(lambda _, reason: self._renewed(reason, anew))

    def _look(self, channel: Any) -> None:
        channel.exchange_declare(self._exchange, passive=True, callback=_answered)
        channel.close()  # pika sends this once all of the above is answered

    def _bind_again(self, channel: Any) -> None:
        channel.exchange_declare(self._exchange, exchange_type="topic", durable=True, callback=_answered)
        self._bind(channel)
        channel.close()

    def _renewed(self, reason: Any, anew: bool) -> None:
        code = reason.reply_code if isinstance(reason, exceptions.ChannelClosedByBroker) else 0
        if code == MISSING and not anew:
            log.warning(
                "Exchange %s is gone: declared anew", self._exchange, extra={"action": "exchange_missing"}
            )
            self._renew(missing=True)
            return
        if anew:
            self._exchange_problem = f"{code} {reason.reply_text}" if code == MISMATCH else ""
            if self._consuming:
                self._report(self._queue.name, self._exchange_problem)
        self._later(RENEW, self._renew)

    def _try_again(self, problem: str = "") -> None:
        if problem:
            self._report(self._queue.name, problem)
        self._failures += 1
        wire = self._wire
        self._later(
            backoff.delay(self._failures, AGAIN_BASE, AGAIN_CAP, self._rng),
            lambda: self.begin() if wire.is_open else None,
        )


def _answered(_frame: Any) -> None:
    """An answer that only tells pika to send the next step."""


def read_delivery(tenure: Tenure, queue: str, method: Any, properties: Any, body: bytes) -> Delivery:
    """A delivery from whatever the producer sent: what is missing is empty, what is no text is made one."""
    return Delivery(
        handle=(tenure, method.delivery_tag), queue=queue, body=body, message_id=properties.message_id or None,
        type=properties.type or "", exchange=_text(method.exchange), routing_key=_text(method.routing_key),
        redelivered=bool(method.redelivered), headers=properties.headers or {},
        content_type=properties.content_type or "", content_encoding=properties.content_encoding or "",
        correlation_id=properties.correlation_id or "", app_id=properties.app_id or "",
        timestamp=properties.timestamp,
    )  # fmt: skip


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
