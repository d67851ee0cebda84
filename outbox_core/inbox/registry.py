"""Who handles what: `@subscribe` registers functions, and the consumers' queues follow from them.

Patterns are those of a topic exchange (AMQP 0-9-1, section 3.1.3.3): words between dots, `*` for exactly one word,
`#` for any number of words. A message that several patterns of one consumer match goes to one function: an exact
type before a pattern, else the one that was registered first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from outbox_core.conf import settings
from outbox_core.transports.base import Queue
from outbox_core.transports.topics import matches

__all__ = ["Handler", "Subscription", "forget", "matches", "queues", "subscribe", "subscriptions"]

MAX_NAME = 255  # bytes: an AMQP short string
MAX_PREFETCH = 65_535  # basic.qos has 16 bits

Handler = Callable[[Any], Any]
F = TypeVar("F", bound=Handler)


@dataclass(slots=True)
class Subscription:
    """A consumer: its queue's name, the patterns that it takes, and the function for each."""

    consumer: str
    ordered: bool = False
    discard_stale: bool = False
    using: str = "default"
    group: int = 1
    prefetch: int | None = None
    handlers: dict[str, Handler] = field(default_factory=dict)  # pattern -> function, as registered

    @property
    def types(self) -> tuple[str, ...]:
        """The patterns, in order of registration."""
        return tuple(self.handlers)

    @property
    def function(self) -> Handler | None:
        """The function, if the consumer has only one; else None."""
        return functions[0] if len(functions := list(dict.fromkeys(self.handlers.values()))) == 1 else None

    def handler_for(self, type: str) -> Handler | None:
        """The function for a message type, or None."""
        if type in self.handlers:
            return self.handlers[type]
        return next((f for pattern, f in self.handlers.items() if matches(pattern, type)), None)

    @property
    def queue(self) -> Queue:
        """Its queue on the broker."""
        return Queue(
            self.consumer, self.types, self.prefetch or settings.PREFETCH, single_active=self.ordered
        )


_subscriptions: dict[str, Subscription] = {}


def subscribe(
    *types: str, consumer: str, ordered: bool = False, discard_stale: bool = False, using: str | None = None,
    group: int = 1, prefetch: int | None = None,
) -> Callable[[F], F]:  # fmt: skip
    """Register the decorated function for messages of `types`, for the consumer named `consumer`.

    It is called with one `InboxMessage` inside a transaction on the database `using`. The function's writes, the
    receipt and what it publishes commit together, once per (consumer, message id); an exception rolls all of it back
    and the message is tried again later. A consumer may have several functions, one for each type or pattern.

    `types`: message types or topic patterns (`orders.*`, `catalog.#`), at least one, at most 255 bytes each.
    `consumer`: its name and that of its queue, at most 255 bytes.
    `ordered`: a message that fails holds back the later ones of its key for this consumer.
    `discard_stale`: a message older than the newest one applied for the same (source, key) has no effect.
    `using`: the database alias that the function writes to.
    `group`: how many messages may share one transaction, 1 to 1000. One that fails is rolled back alone; a function
    must not count on its own commit (`on_commit` runs after that of the group).
    `prefetch`: deliveries held unacked; left out, `OUTBOX["PREFETCH"]`.

    Raises ValueError (TypeError for a wrong type) at import: for a bad name, pattern or number, for a type that the
    consumer has already, and for options that differ from those of the same consumer elsewhere.

        @subscribe("catalog.price_changed", consumer="basket", discard_stale=True)
        def update_baskets(message): ...
    """
    given = Subscription(_name(consumer), ordered, discard_stale, using or "default", group, prefetch)
    _check_numbers(given)
    if not types:
        raise ValueError(f'subscribe(consumer="{consumer}") names no type')
    for pattern in types:
        _check_pattern(pattern)

    def register(function: F) -> F:
        _add(given, types, function)
        return function

    return register


def subscriptions() -> dict[str, Subscription]:
    """Every consumer by name. The discovery of `handlers.py` has run once Django is ready."""
    return dict(_subscriptions)


def queues(consumers: Iterable[str] | None = None) -> list[Queue]:
    """The queues of these consumers, or of all. Raises KeyError for a name that no one subscribed."""
    chosen = _subscriptions if consumers is None else {name: _subscriptions[name] for name in consumers}
    return [subscription.queue for subscription in chosen.values()]


def forget(consumer: str) -> None:
    """Remove a consumer, for tests."""
    _subscriptions.pop(consumer, None)


def _name(consumer: object) -> str:
    if not isinstance(consumer, str):
        raise TypeError(f"subscribe(): consumer must be text, not {type(consumer).__name__}")
    if not consumer or not consumer.isprintable() or consumer.startswith("amq."):
        raise ValueError(
            f"subscribe(): consumer {consumer!r} must be printable, not empty and not start with amq."
        )
    if (length := len(consumer.encode())) > MAX_NAME:
        raise ValueError(f"subscribe(): consumer is {length} bytes long, but the limit is {MAX_NAME}")
    return consumer


def _check_pattern(pattern: object) -> None:
    if not isinstance(pattern, str):
        raise TypeError(
            f"subscribe(): a type must be text, not {type(pattern).__name__} (is @subscribe called?)"
        )
    if not pattern or not pattern.isprintable():
        raise ValueError(f"subscribe(): type {pattern!r} must be printable and not empty")
    if (length := len(pattern.encode())) > MAX_NAME:
        raise ValueError(f"subscribe(): type is {length} bytes long, but the limit is {MAX_NAME}")
    for word in pattern.split("."):
        if len(word) > 1 and ("*" in word or "#" in word):
            raise ValueError(f'subscribe(): in type "{pattern}", * and # must stand alone between dots')


def _check_numbers(given: Subscription) -> None:
    for name, value, most in (("group", given.group, 1000), ("prefetch", given.prefetch, MAX_PREFETCH)):
        if value is None and name == "prefetch":
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"subscribe(): {name} must be a whole number, not {type(value).__name__}")
        if not 1 <= value <= most:
            raise ValueError(f"subscribe(): {name} is {value}, but must be 1 to {most}")


def _add(given: Subscription, types: tuple[str, ...], function: Handler) -> None:
    known = _subscriptions.get(given.consumer)
    for option in ("ordered", "discard_stale", "using", "group", "prefetch") if known else ():
        before, now = getattr(known, option), getattr(given, option)
        if before != now:
            raise ValueError(
                f'consumer "{given.consumer}" was subscribed with {option}={before!r}, now with {now!r}'
            )
    target = known or given
    for pattern in dict.fromkeys(types):
        if pattern in target.handlers:
            other = target.handlers[pattern]
            raise ValueError(
                f'consumer "{given.consumer}" already handles "{pattern}" with '
                f"{getattr(other, '__qualname__', other)}; one function per consumer and type"
            )
    # All or nothing: a refused registration leaves no consumer without functions behind.
    target.handlers.update(dict.fromkeys(types, function))
    _subscriptions[given.consumer] = target
