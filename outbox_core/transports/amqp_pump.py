"""Writing to the broker, and what is late: everything here runs in the link's thread.

Confirms are looked at only once the first batch after a `submit` is written to its end, so that the crash point
`published` stands between the two.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from outbox_core import crash
from outbox_core.clock import lease_clock
from outbox_core.errors import TransportError
from outbox_core.transports.amqp_clock import PausableClock
from outbox_core.transports.amqp_frames import Unsendable, check_exchange, encode
from outbox_core.transports.amqp_judge import Verdict
from outbox_core.transports.amqp_ledger import Lane, Ledger
from outbox_core.transports.amqp_link import Link
from outbox_core.transports.amqp_route import Route, Written
from outbox_core.transports.amqp_wire import Wire
from outbox_core.transports.base import Outcome

CHUNK = 64 * 1024  # bytes handed to the connection at a time
BLOCKED_PATIENCE = 1.0  # seconds that something may wait for a blocked connection
ROUTES = 256  # exchanges with a channel of their own; beyond that, idle ones are closed
SOON = 0.005  # seconds: the shortest wait for what is due


class ConfirmTimeout(TransportError):
    """The broker owes an answer for too long, so the connection is given up."""


class Pump:
    """Hands messages to the connection, within the window and the deadline. See `amqp_publisher`."""

    link: Link

    def __init__(self, ledger: Ledger, main: str, window: int, confirm_timeout: float) -> None:
        self._ledger, self._main, self._window, self._confirm_timeout = ledger, main, window, confirm_timeout
        self.inbox: deque[Lane] = deque()  # filled by the caller's thread
        self.clock = PausableClock()
        self._routes: dict[str, Route] = {}
        self._held: list[Callable[[], None]] = []  # confirms that are not looked at yet
        self._burst = self._wrote = False  # a submit's first batch is under way; some of it is written
        self._timer: tuple[float, Any] | None = None

    # The connection comes and goes.

    def up(self, wire: Wire) -> None:
        self._burst = self._wrote = False
        if self._main:
            self._route(self._main).begin()
        self.accept()

    def down(self, error: Exception | None, reason: str) -> None:
        self.catch_up()
        routes, self._routes = list(self._routes.values()), {}
        name = "ConnectionLost"
        if isinstance(error, ConfirmTimeout):
            name, reason = "ConfirmTimeout", str(error)
        for route in routes:
            maybe, never = route.give_up()
            for lane in maybe:
                self._ledger.stop(lane, (Outcome.UNKNOWN, name, f"Maybe sent: {reason}"))
            for lane in never:
                self._ledger.unsent(lane, f"Not written: {reason}")
        self.accept()

    def changed(self) -> None:
        state = self.link.state.name
        self.clock.pause(state == "blocked")
        self._ledger.tell()
        if state in ("connected", "blocked"):
            self.link.call(self.pump)

    def accept(self) -> None:
        """Take over what was submitted. Without a connection it is answered at once: nothing is kept for later."""
        usable = self._usable()
        while self.inbox:
            lane = self.inbox.popleft()
            if usable is not None:
                self._burst = True
                self._queue(lane)
            else:
                reason = self.link.state.detail or "still connecting"
                self._ledger.stop(
                    lane, (Outcome.ROAD, "BrokerUnreachable", f"RabbitMQ is not reachable: {reason}")
                )
        self.pump()

    def _usable(self) -> Wire | None:
        wire = self.link.wire
        return None if wire is None or wire.doomed or not wire.is_open else wire

    # Where messages go.

    def _queue(self, lane: Lane) -> None:
        if lane.epoch != self._ledger.epoch:
            return
        try:
            check_exchange(lane.head)
        except Unsendable as fault:
            self.stop(lane, (Outcome.INVALID, fault.error, fault.detail))
        else:
            self._route(lane.head.exchange).add(lane)

    def _route(self, exchange: str) -> Route:
        route = self._routes.get(exchange)
        if route is None:
            assert self.link.wire is not None
            if len(self._routes) >= ROUTES:
                self._retire_idle()
            route = self._routes[exchange] = Route(self, self.link.wire, exchange, exchange == self._main)
        return route

    def _retire_idle(self) -> None:
        idle = [route for route in self._routes.values() if route.idle and not route.main]
        for route in idle[: ROUTES // 2]:
            del self._routes[route.exchange]
            route.retire()

    # What a route tells.

    def confirm(self, written: Written) -> None:
        if self._ledger.confirm(written.lane):
            self._queue(written.lane)

    def stop(self, lane: Lane, verdict: Verdict) -> None:
        self._ledger.stop(lane, verdict)

    def confirm_later(self, settle: Callable[[], None]) -> bool:
        """Keep a confirm for later if its batch is not written to its end."""
        wire = self.link.wire
        if not (self._burst and wire is not None and wire.unsent):
            return False
        self._held.append(settle)
        return True

    def catch_up(self) -> None:
        """Look at the confirms that were kept."""
        held, self._held = self._held, []
        for settle in held:
            settle()

    # Writing.

    def pump(self) -> None:
        """Hand the next chunk over, if the one before is out, and see to what has waited too long."""
        wire = self._usable()
        if wire is None:
            return
        self._expire(wire)
        while self.clock.paused_at is None and not wire.unsent and not wire.doomed:
            if not any(self._write(route, wire) for route in self._writable()):
                break
        self._arm()

    def drained(self) -> None:
        """All bytes that were handed over have left the process."""
        self.pump()
        wire = self.link.wire
        if wire is None or wire.unsent:
            return
        if self._burst and self._wrote:
            crash.point("published")
            self._burst = self._wrote = False
        if self._held:
            self.catch_up()
            self.pump()

    def _writable(self) -> Iterator[Route]:
        """The routes with something to write; the one that is taken goes to the end of the line."""
        for route in list(self._routes.values()):
            if route.writable:
                self._routes[route.exchange] = self._routes.pop(route.exchange)
                yield route

    def _write(self, route: Route, wire: Wire) -> bool:
        """One chunk for one route. True if something was handed over."""
        if route.suspects:
            return self._write_suspect(route, wire)
        epoch, room = self._ledger.epoch, self._window - sum(len(r.written) for r in self._routes.values())
        lanes: list[Lane] = []
        frames: list[bytes] = []
        size = 0
        while route.ready and len(lanes) < room:
            lane = route.ready.popleft()
            encoded = self._encode(lane, route, wire) if lane.epoch == epoch else None
            if encoded is None:
                continue
            if frames and size + len(encoded) > CHUNK:
                route.ready.appendleft(lane)
                break
            lanes.append(lane)
            frames.append(encoded)
            size += len(encoded)
        return bool(frames) and self._hand_over(b"".join(frames), lanes, route, wire, epoch)

    def _encode(self, lane: Lane, route: Route, wire: Wire) -> bytes | None:
        try:
            return encode(lane.head, route.number, wire.frame_max)
        except Unsendable as fault:
            self.stop(lane, (Outcome.INVALID, fault.error, fault.detail))
            return None

    def _hand_over(self, chunk: bytes, lanes: list[Lane], route: Route, wire: Wire, epoch: int) -> bool:
        """Under the lease, or not at all. Lanes from before a fence are dropped."""
        with self._ledger.gate:
            allowed = self._ledger.may_write(epoch)
            if allowed:
                wire.write(chunk)
        if allowed:
            self._wrote = True
            route.wrote(lanes, self.clock.now())
        else:
            for lane in lanes:
                self._ledger.unsent(lane, "Not written: the lease ran out first")
        return allowed

    def _write_suspect(self, route: Route, wire: Wire) -> bool:
        """Send one suspect again, alone. Where the lease is over it is not; it was written once, so it is unknown."""
        lane = route.suspects.popleft().lane
        with self._ledger.gate:
            allowed = self._ledger.may_write(lane.epoch)
            if allowed:
                wire.write(encode(lane.head.repeated, route.number, wire.frame_max))
        if allowed:
            self._wrote = True
            route.wrote([lane], self.clock.now(), twice=True)
        else:
            detail = (
                "Maybe sent: the broker closed the channel, and the lease ran out before it was sent again"
            )
            self.stop(lane, (Outcome.UNKNOWN, "ChannelClosed", detail))
        return True

    # Time.

    def _expire(self, wire: Wire) -> None:
        """Give back what may not be written any more, or has waited too long for a blocked broker."""
        paused = self.clock.paused_at
        if self._ledger.expired:
            for lane in self._take_ready():
                self._ledger.unsent(lane, "Not written: the lease ran out first")
        elif paused is not None and time.monotonic() - paused >= BLOCKED_PATIENCE:
            for lane in self._take_ready():
                self.stop(lane, (Outcome.ROAD, "BrokerBlocked", self.link.state.detail))
        oldest = self._oldest()
        if oldest is not None and self.clock.now() - oldest >= self._confirm_timeout:
            wire.abort(ConfirmTimeout(f"no answer from the broker for {self._confirm_timeout:g} s"))

    def _take_ready(self) -> Iterator[Lane]:
        for route in self._routes.values():
            while route.ready:
                yield route.ready.popleft()

    def _oldest(self) -> float | None:
        """Since when the broker owes its oldest answer, by the pausable clock."""
        return min(
            (since for route in self._routes.values() if (since := route.waits_since) is not None),
            default=None,
        )

    def _arm(self) -> None:
        """See to it that `pump` runs when the next thing will have waited too long."""
        due: list[float] = []
        paused = self.clock.paused_at
        if any(route.ready for route in self._routes.values()):
            due.append(self._ledger.deadline - lease_clock())
            if paused is not None:
                due.append(paused + BLOCKED_PATIENCE - time.monotonic())
        oldest = self._oldest()
        if oldest is not None and paused is None:
            due.append(oldest + self._confirm_timeout - self.clock.now())
        if not due:
            return
        now = time.monotonic()
        at = now + max(SOON, min(due))
        if self._timer is None or at < self._timer[0]:
            if self._timer is not None:
                self._timer[1].cancel()
            self._timer = (at, self.link.later(at - now, self._tick))

    def _tick(self) -> None:
        self._timer = None
        self.pump()
