"""RabbitMQ over AMQP 0-9-1, with pika.

Reading order: amqp_frames and amqp_reading (bytes out and in), amqp_wire (pika's connection and what it lacks),
amqp_link (one connection kept up in a thread), amqp_judge (what a refusal means); to send: amqp_ledger (what is owed
to whom), amqp_route (one exchange's channel), amqp_pump (writing), amqp_publisher; to receive: amqp_feed (one queue),
amqp_consumer; and amqp_topology.
"""

from __future__ import annotations

from collections.abc import Sequence

from outbox_core.transports.amqp_consumer import AmqpConsumer
from outbox_core.transports.amqp_link import parse_url
from outbox_core.transports.amqp_publisher import AmqpPublisher
from outbox_core.transports.amqp_topology import apply_topology, check_topology
from outbox_core.transports.base import Difference, Queue


class RabbitMQ:
    """One RabbitMQ virtual host. `url` is an AMQP URL whose query parameters (heartbeat, frame_max, ssl_options,
    ...) are pika's; `exchange` the main exchange, `window` the messages that may be unconfirmed at a time, and
    `confirm_timeout` the seconds to wait for a confirm. Raises TransportError if the URL can't be read."""

    name = "rabbitmq"

    def __init__(self, url: str, exchange: str, window: int = 500, confirm_timeout: float = 30.0) -> None:
        self._parameters = parse_url(url)
        self.exchange, self.window, self.confirm_timeout = exchange, window, confirm_timeout

    def publisher(self) -> AmqpPublisher:
        return AmqpPublisher(self._parameters, self.exchange, self.window, self.confirm_timeout)

    def consumer(self, queues: Sequence[Queue]) -> AmqpConsumer:
        return AmqpConsumer(self._parameters, self.exchange, queues)

    def check_topology(self, queues: Sequence[Queue]) -> list[Difference]:
        """What is missing or differs on the broker. Bindings can't be listed over AMQP: the caller compares those
        that it remembers (model Binding). Raises TransportError if the broker can't be reached."""
        return check_topology(self._parameters, self.exchange, queues)

    def apply_topology(
        self, queues: Sequence[Queue], gone: Sequence[tuple[str, str]] = ()
    ) -> list[Difference]:
        """Declare and bind, and unbind `gone`; idempotent. Returns what only a person may resolve.
        Raises TransportError if the broker can't be reached."""
        return apply_topology(self._parameters, self.exchange, queues, gone)
