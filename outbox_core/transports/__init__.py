"""The brokers: `base` says what the engine asks of one, `loopback` and `rabbitmq` are the two.

`transport(using)` gives the one that the settings name.
"""

from __future__ import annotations

from outbox_core.conf import settings
from outbox_core.transports.base import Transport


def transport(using: str = "default") -> Transport:
    """The transport that `OUTBOX["TRANSPORT"]` names; `using` is the database alias of the loopback broker."""
    if settings.transport == "rabbitmq":
        from outbox_core.transports.rabbitmq import RabbitMQ

        return RabbitMQ(settings.AMQP_URL, exchange=settings.EXCHANGE, window=settings.WINDOW,
                        confirm_timeout=settings.CONFIRM_TIMEOUT)  # fmt: skip
    from outbox_core.transports.loopback import Loopback

    return Loopback(using, exchange=settings.EXCHANGE, batch=settings.BATCH_SIZE)
