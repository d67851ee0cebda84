"""The brokers: `base` says what the engine asks of one, `loopback` and `rabbitmq` are the two.

`transport(using)` gives the one that the settings name.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from outbox_core.conf import settings
from outbox_core.transports.base import Transport


def where(using: str = "default") -> str:
    """The broker in a phrase for people, without the password."""
    if settings.transport == "rabbitmq":
        url = urlsplit(settings.AMQP_URL)
        return f"RabbitMQ at {url.hostname}:{url.port or 5672}{url.path}, exchange {settings.EXCHANGE}"
    return f'the embedded broker in database "{using}"'


def transport(using: str = "default") -> Transport:
    """The transport that `OUTBOX["TRANSPORT"]` names; `using` is the database alias of the loopback broker."""
    if settings.transport == "rabbitmq":
        from outbox_core.transports.rabbitmq import RabbitMQ

        return RabbitMQ(settings.AMQP_URL, exchange=settings.EXCHANGE, window=settings.WINDOW,
                        confirm_timeout=settings.CONFIRM_TIMEOUT)  # fmt: skip
    from outbox_core.transports.loopback import Loopback

    return Loopback(using, exchange=settings.EXCHANGE, batch=settings.BATCH_SIZE)
