"""The settings: one dict `OUTBOX` in Django's settings, read here and nowhere else.

Nothing is read at import; a changed setting (`override_settings`) is seen at the next access. Unknown
keys and wrong types are reported by the system checks (`checks.py`), with the nearest known key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from django.conf import settings as django_settings
from django.core.signals import setting_changed


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's default, the type that its value must have, and what it is, for the docs and the checks."""

    default: Any
    kind: type | tuple[type, ...]
    help: str
    choices: tuple[str, ...] = ()
    least: float | None = None


_number = (int, float)

SETTINGS: dict[str, Setting] = {
    "TRANSPORT": Setting("", str, "the broker; unset: by whether AMQP_URL is set", ("", "rabbitmq", "loopback")),
    "AMQP_URL": Setting("", str, "where RabbitMQ is: amqp://user:password@host:port/vhost"),
    "EXCHANGE": Setting("events", str, "the topic exchange that messages go to by default"),
    "MODE": Setting("worker", str, "who sends first: dispatcher or producer", ("worker", "direct")),
    "BATCH_SIZE": Setting(500, int, "messages read in one turn", least=1),
    "WINDOW": Setting(500, int, "messages sent and not yet confirmed, at most", least=1),
    "MAX_ATTEMPTS": Setting(10, int, "failures after which a message is dead", least=1),
    "BACKOFF_BASE": Setting(1, _number, "seconds: the ceiling of the first back-off", least=0),
    "BACKOFF_CAP": Setting(300, _number, "seconds: the ceiling of every back-off", least=0),
    "ON_DEAD": Setting("block", str, "does a dead message hold back its key", ("block", "skip")),
    "UNROUTABLE": Setting("fail", str, "is a returned message a failure, or accepted as sent", ("fail", "accept")),
    "KEY_LOCK": Setting(False, bool, "a lock per key at publish(): transactions that overlap get an order"),
    "MAX_PAYLOAD_BYTES": Setting(1048576, int, "the payload's JSON text, in bytes", least=1),
    "RETENTION": Setting({"dispatched": 30, "receipts": 7, "failures": 90}, dict, "days that facts are kept"),
    "DEDUPE_WINDOW": Setting(7, _number, "days that a receipt stands at least", least=0),
    "WAKEUP": Setting("auto", str, "how a dispatcher learns of new messages", ("auto", "notify", "poll")),
    "LISTEN_URL": Setting("", str, "a PostgreSQL URL for LISTEN that does not pass through a pooler"),
    "POLL_INTERVAL": Setting(1, _number, "seconds between two looks when nothing wakes the dispatcher", least=0.01),
    "LEASE": Setting(10, _number, "seconds that a dispatcher owns its partitions without a sign of life", least=0.5),
    "HEARTBEAT": Setting(2.5, _number, "seconds between two signs of life", least=0.1),
    "CONFIRM_TIMEOUT": Setting(30, _number, "seconds to wait for a publisher confirm", least=0.1),
    "DIRECT_GRACE": Setting(5, _number, "seconds that a producer has for sending directly", least=1),
    "PREFETCH": Setting(100, int, "deliveries that a consumer holds unacked", least=1),
    "BEHIND_AFTER": Setting(60, _number, "seconds of waiting after which delivery counts as behind", least=0),
    "DATABASES": Setting(["default"], (list, tuple), "the database aliases that hold an outbox"),
    "REQUIRE_TRANSACTION": Setting(True, bool, "publish() outside a transaction is an error"),
    "MASK": Setting(["email", "**.password"], (list, tuple), "payload paths that are shown masked"),
    "SOURCE": Setting("outboard", str, "who produces: the CloudEvents source"),
    "AUDIT_KEY": Setting("", str, "the HMAC key of the audit chain; required unless DEBUG"),
}  # fmt: skip


class Settings:
    """Attribute access to the settings above: `settings.BATCH_SIZE`."""

    BATCH_SIZE: int
    WINDOW: int
    MAX_ATTEMPTS: int
    MAX_PAYLOAD_BYTES: int
    PREFETCH: int
    BACKOFF_BASE: float
    BACKOFF_CAP: float
    DEDUPE_WINDOW: float
    POLL_INTERVAL: float
    LEASE: float
    HEARTBEAT: float
    CONFIRM_TIMEOUT: float
    DIRECT_GRACE: float
    BEHIND_AFTER: float
    AMQP_URL: str
    EXCHANGE: str
    SOURCE: str
    LISTEN_URL: str
    AUDIT_KEY: str
    TRANSPORT: Literal["", "rabbitmq", "loopback"]
    MODE: Literal["worker", "direct"]
    ON_DEAD: Literal["block", "skip"]
    UNROUTABLE: Literal["fail", "accept"]
    WAKEUP: Literal["auto", "notify", "poll"]
    KEY_LOCK: bool
    REQUIRE_TRANSACTION: bool
    RETENTION: dict[str, float]
    DATABASES: list[str]
    MASK: list[str]

    def __init__(self) -> None:
        self._cache: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name not in SETTINGS:
            raise AttributeError(name)
        if self._cache is None:
            given = getattr(django_settings, "OUTBOX", {})
            self._cache = {key: given.get(key, s.default) for key, s in SETTINGS.items()}
            retention = SETTINGS["RETENTION"].default
            self._cache["RETENTION"] = {**retention, **self._cache["RETENTION"]}
        return self._cache[name]

    @property
    def transport(self) -> str:
        """`rabbitmq` or `loopback`."""
        return self.TRANSPORT or ("rabbitmq" if self.AMQP_URL else "loopback")

    def forget(self, *, setting: str, **kwargs: Any) -> None:
        if setting == "OUTBOX":
            self._cache = None


settings = Settings()
setting_changed.connect(settings.forget)
