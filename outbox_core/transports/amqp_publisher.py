"""The sending side over AMQP, as its caller sees it. What it decides:

- A chunk is at most 64 kB, or one message if that is larger, and the next one is handed to the connection only when
  the one before has left the process: past the deadline at most one chunk is still under way.
- While the broker blocks the connection nothing is written. What waits longer than a second comes back as ROAD
  "BrokerBlocked" (a lane's head; the rest UNSENT): it must not stand in flight for as long as a disk is full.
- The confirm timer stands still while the connection is blocked. A message unconfirmed for longer than the time-out
  ends the connection: all that is unconfirmed on it is UNKNOWN.
- Without a connection all is answered at once (ROAD "BrokerUnreachable", the rest of a lane UNSENT).
- What was sent again alone to find a guilty one may be there twice: its second copy and its Result say so (`twice`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pika import URLParameters

from outbox_core.transports.amqp_ledger import Ledger
from outbox_core.transports.amqp_link import Link
from outbox_core.transports.amqp_pump import Pump
from outbox_core.transports.base import BrokerState, Outcome, Result, Send


class AmqpPublisher:
    """See `base.Publisher`. `window`: messages unconfirmed at a time; `confirm_timeout`: seconds."""

    def __init__(self, parameters: URLParameters, exchange: str, window: int, confirm_timeout: float) -> None:
        self._ledger = Ledger()
        self._pump = pump = Pump(self._ledger, exchange, window, confirm_timeout)
        self._link = pump.link = Link(
            parameters, "publisher", up=pump.up, down=pump.down, changed=pump.changed, drained=pump.drained
        )

    def open(self) -> None:
        self._link.start()

    def submit(self, lanes: Sequence[Sequence[Send]], deadline: float) -> None:
        new = self._ledger.open(lanes, deadline)
        if self._link.alive:
            self._pump.inbox.extend(new)
            self._link.call(self._pump.accept)
            return
        for lane in new:
            self._ledger.stop(lane, (Outcome.ROAD, "BrokerUnreachable", "The publisher is not open"))

    def extend(self, deadline: float) -> None:
        if self._ledger.extend(deadline):
            self._link.call(self._pump.pump)

    def take(self) -> list[Result]:
        return self._ledger.take()

    def wait(self, timeout: float) -> bool:
        return self._ledger.wait(timeout)

    def wake(self) -> None:
        self._ledger.wake()

    def fence(self) -> None:
        self._ledger.fence()
        self._link.call(self._pump.pump)

    @property
    def outstanding(self) -> int:
        return self._ledger.owed

    @property
    def state(self) -> BrokerState:
        return self._link.state

    def close(self, timeout: float = 5.0) -> None:
        self._link.stop(timeout)
