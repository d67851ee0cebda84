"""A message in the form that pika itself would send it."""

from __future__ import annotations

from pika import BasicProperties, frame, spec

from outbox_core.transports.base import Send


def properties(send: Send) -> BasicProperties:
    """Its AMQP properties; an empty text is left out."""
    return BasicProperties(
        content_type=send.content_type or None, headers=dict(send.headers), delivery_mode=2,
        correlation_id=send.correlation_id or None, message_id=send.message_id, timestamp=send.timestamp,
        type=send.type or None, app_id=send.app_id or None,
    )  # fmt: skip


def frames(send: Send, channel: int) -> bytes:
    """All its frames, its body in one piece."""
    said = spec.Basic.Publish(exchange=send.exchange, routing_key=send.routing_key, mandatory=send.mandatory)
    parts = [frame.Method(channel, said), frame.Header(channel, len(send.body), properties(send))]
    if send.body:
        parts.append(frame.Body(channel, send.body))
    return b"".join(part.marshal() for part in parts)
