"""A connection that is kept up: a thread of its own, reconnecting with full-jitter back-off, and its state for people.

Everything that touches the connection runs in that thread; other threads hand callables over with `call`.
Heartbeats are served there, whatever the rest of the process does.
"""

from __future__ import annotations

import copy
import encodings.idna  # noqa: F401 - else getaddrinfo imports it in a thread, and a fork at that moment deadlocks the child
import functools
import logging
import os
import random
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pika import URLParameters

from outbox_core import backoff
from outbox_core.errors import TransportError
from outbox_core.transports.amqp_judge import explain
from outbox_core.transports.amqp_wire import Loop, Wire
from outbox_core.transports.base import BrokerState

log = logging.getLogger("outbox.transport")

HEARTBEAT = 30  # seconds, unless the URL says otherwise
RECONNECT_BASE, RECONNECT_CAP = 0.1, 5.0  # seconds: ceilings of the first and of every back-off
FORCED = 0.5  # seconds before the end of `stop` at which a farewell that takes too long is cut off


def parse_url(url: str) -> URLParameters:
    """pika's parameters from an AMQP URL. Raises TransportError that says what is wrong, without the password."""
    try:
        parameters = URLParameters(url)
        if "heartbeat" not in parse_qs(urlsplit(url).query):
            parameters.heartbeat = HEARTBEAT
        if not parameters.host:
            raise ValueError("no host")
    except Exception as error:
        raise TransportError(f"AMQP_URL can't be read: {error}") from None
    parameters.blocked_connection_timeout = None  # a new connection would be blocked as well
    return parameters


class Link:
    """Keeps one connection. `up(wire)` is called when it is open, `down(error, reason)` when it is gone (also if it
    was never there), `drained()` when its outgoing buffer ran empty, `changed()` after each change of `state`;
    all in the link's thread."""

    def __init__(
        self, parameters: URLParameters, name: str, *, up: Callable[[Wire], None],
        down: Callable[[Exception | None, str], None], changed: Callable[[], None],
        drained: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._up, self._down, self._changed = up, down, changed
        self._parameters = copy.copy(parameters)
        self._parameters.client_properties = {
            "connection_name": f"outboard {name} {socket.gethostname()}:{os.getpid()}"
        }
        self.state = BrokerState("connecting", since=datetime.now(UTC))
        self.wire: Wire | None = None  # open, and not known to be gone
        self._opening: Wire | None = None
        self._failures = 0
        self._waiting = False  # to connect again
        self._stopping = False
        self._rng = random.Random()
        self.loop = Loop(drained)
        self._thread = threading.Thread(target=self._run, name=f"amqp-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` in the link's thread soon. Does nothing once the thread has ended."""
        self.loop.add_callback_threadsafe(action)

    def later(self, seconds: float, action: Callable[[], None]) -> Any:
        """Run `action` after `seconds`; only from the link's thread. The answer has `cancel()`."""
        return self.loop.call_later(seconds, action)

    def stop(self, timeout: float) -> None:
        """Say farewell and end the thread, by force shortly before `timeout` seconds are over."""
        if self._thread.is_alive():
            self.call(functools.partial(self._leave, max(0.05, timeout - FORCED)))
            self._thread.join(timeout)
        self._stopping = True

    def _run(self) -> None:
        self._connect()
        while not self._stopping:
            try:
                self.loop.run()
            except Exception as error:  # a fault of ours: give the connection up, not the thread
                log.exception("The connection's thread met an error", extra={"action": "transport_error"})
                self._give_up(error)
        self.loop.close()

    def _give_up(self, error: Exception) -> None:
        wire = self.wire or self._opening
        if wire is not None:
            wire.abort(error)
        else:
            self._retry()

    def _connect(self) -> None:
        self._waiting = False
        if self._stopping:
            return
        try:
            self._opening = Wire(
                self._parameters, on_open_callback=self._opened, on_open_error_callback=self._lost,
                on_close_callback=self._lost, custom_ioloop=self.loop,
            )  # fmt: skip
        except Exception as error:
            self._lost(None, error)

    def _opened(self, wire: Any) -> None:
        self.wire, self._opening, self._failures = wire, None, 0
        wire.add_on_connection_blocked_callback(self._blocked)
        wire.add_on_connection_unblocked_callback(lambda *_: self._set("connected"))
        self._set("connected")
        log.info("Connected to RabbitMQ at %s", self._address, extra={"action": "broker_connected"})
        self._up(wire)

    def _blocked(self, _wire: Any, method: Any) -> None:
        reason = method.method.reason
        self._set("blocked", f"RabbitMQ takes no messages: {reason}")
        log.warning("RabbitMQ blocks this connection: %s", reason, extra={"action": "broker_blocked"})

    def _lost(self, _wire: Any, error: Any) -> None:
        self.wire = self._opening = None
        if self._stopping:
            self.loop.stop()
            return
        reason = f"{self._address}: {explain(error)}"
        if self.state.name != "down" or self.state.detail != reason:
            log.warning("RabbitMQ is not reachable: %s", reason, extra={"action": "broker_lost"})
        self._set("down", reason)
        self._down(error, reason)
        self._retry()

    def _retry(self) -> None:
        if self._waiting:
            return
        self._waiting = True
        self._failures += 1
        self.later(backoff.delay(self._failures, RECONNECT_BASE, RECONNECT_CAP, self._rng), self._connect)

    @property
    def _address(self) -> str:
        return f"{self._parameters.host}:{self._parameters.port}"

    def _set(self, name: str, detail: str = "") -> None:
        since = self.state.since if name == self.state.name else datetime.now(UTC)
        self.state = BrokerState(name, detail, since)
        self._changed()

    def _leave(self, grace: float) -> None:
        self._stopping = True
        wire = self.wire or self._opening
        if wire is None or wire.is_closed:
            self.loop.stop()
            return
        self.later(grace, functools.partial(self._cut, wire))
        try:
            wire.close()
        except Exception as error:
            wire.abort(error)

    def _cut(self, wire: Wire) -> None:
        wire.abort(TransportError("the broker did not say goodbye in time"))
        self.later(0.05, self.loop.stop)
