"""One exchange's channel: checked before use, with its messages in flight, and the guilty one found when the broker
closes it.

    new -> checking -> open -> closing -> checking ...      checking -> refused, if the broker refuses the exchange

A broker that refuses a message closes the channel and does not say which message it was. Those unconfirmed on it
are sent again one at a time on a new channel: the one that closes the channel alone is guilty. What was taken the
first time is then there twice, with one id; the second copy and the Result say so.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pika import exceptions

from outbox_core.transports.amqp_judge import Verdict, judge, refusal, returned, where
from outbox_core.transports.amqp_ledger import Lane
from outbox_core.transports.amqp_wire import Wire
from outbox_core.transports.base import Outcome, Send

CHECK_AGAIN = 1.0  # seconds for which a refused exchange stays refused without asking the broker


class Written:
    """The head of a lane that is with the broker, unconfirmed, since `at`."""

    __slots__ = ("at", "lane", "returned")

    def __init__(self, lane: Lane, at: float) -> None:
        self.lane, self.at, self.returned = lane, at, False


class Clock(Protocol):
    def now(self) -> float: ...


class Owner(Protocol):
    """What a route needs of its publisher."""

    clock: Any  # a Clock

    def confirm(self, written: Written) -> None: ...
    def stop(self, lane: Lane, verdict: Verdict) -> None: ...
    def confirm_later(self, settle: Callable[[], None]) -> bool: ...
    def catch_up(self) -> None: ...
    def pump(self) -> None: ...


class Route:
    """The way to one exchange over one connection. The main exchange is declared (durable topic), others looked up."""

    def __init__(self, owner: Owner, wire: Wire, exchange: str, main: bool) -> None:
        self.owner, self.wire, self.exchange, self.main = owner, wire, exchange, main
        self.state = "new"
        self.ready: deque[Lane] = deque()
        self.suspects: deque[Written] = deque()
        self.written: dict[int, Written] = {}  # by delivery tag, ascending
        self.number = 0  # of the channel
        self._channel: Any = None
        self._asked_at = 0.0
        self._tag = 0
        self._declares = main
        self._refused: Callable[[Send], Verdict] | None = None
        self._refused_until = 0.0

    @property
    def writable(self) -> bool:
        """Whether something may be written: a suspect only alone, the others only once no suspect is left."""
        if self.state != "open":
            return False
        if self.suspects:
            return not self.written
        return bool(self.ready) and not (self.written and next(iter(self.written.values())).lane.twice)

    @property
    def idle(self) -> bool:
        return not self.ready and not self.written and not self.suspects and self.state != "checking"

    @property
    def waits_since(self) -> float | None:
        """Since when the broker owes an answer, by the owner's clock."""
        if self.written:
            return next(iter(self.written.values())).at
        return self._asked_at if self.state == "checking" else None

    def add(self, lane: Lane) -> None:
        """Take a lane whose head goes to this exchange."""
        if self.state == "refused" and self._refused and time.monotonic() < self._refused_until:
            self.owner.stop(lane, self._refused(lane.head))
            return
        self.ready.append(lane)
        if self.state in ("new", "refused"):
            self.begin()

    def wrote(self, lanes: Iterable[Lane], at: float, twice: bool = False) -> None:
        """The heads of these lanes were handed to the connection, in this order."""
        for lane in lanes:
            lane.twice = twice
            self._tag += 1
            self.written[self._tag] = Written(lane, at)

    def retire(self) -> None:
        """Close the channel of an idle route that is used no more."""
        self.state = "closing"
        if self._channel is not None and self._channel.is_open:
            self._channel.close()

    def give_up(self) -> tuple[list[Lane], list[Lane]]:
        """Empty the route: the lanes whose head may have reached the broker, and those whose head was never written."""
        maybe = [written.lane for written in itertools.chain(self.written.values(), self.suspects)]
        never = list(self.ready)
        self.written.clear()
        self.suspects.clear()
        self.ready.clear()
        return maybe, never

    # Opening: a channel, the exchange, confirms.

    def begin(self) -> None:
        """Open a channel, make sure of the exchange on it, and ask for confirms."""
        self.state, self._asked_at, self._tag = "checking", self.owner.clock.now(), 0
        try:
            self._channel = self.wire.channel(on_open_callback=self._ask)
        except exceptions.NoFreeChannels:
            self._refuse(lambda send: (Outcome.ROAD, "NoFreeChannels", f"No channel is free ({where(send)})"))
        except exceptions.ConnectionWrongStateError:
            pass  # the connection is going down: its end answers for all
        else:
            self.number = int(self._channel.channel_number)
            self._channel.add_on_close_callback(self._closed)

    def _ask(self, channel: Any) -> None:
        if not self.exchange:  # the default exchange is always there
            self._select()
        elif self._declares:
            channel.exchange_declare(
                self.exchange, exchange_type="topic", durable=True, callback=self._select
            )
        else:
            channel.exchange_declare(self.exchange, passive=True, callback=self._select)

    def _select(self, _frame: Any = None) -> None:
        self._channel.add_on_return_callback(self._returned)
        self._channel.confirm_delivery(self._answered, callback=self._opened)

    def _opened(self, _frame: Any) -> None:
        self.state = "open"
        self.owner.pump()

    # Confirms.

    def _returned(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        """A message came back. It has no delivery tag; its ack follows."""
        for written in self.written.values():
            if written.lane.head.message_id == properties.message_id and not written.returned:
                written.returned = True
                return

    def _answered(self, frame: Any) -> None:
        """An ack or nack; its effect waits while the batch that it belongs to is not written to its end."""
        method = frame.method
        acked = method.NAME == "Basic.Ack"
        if not self.owner.confirm_later(lambda: self._settle(method.delivery_tag, method.multiple, acked)):
            self._settle(method.delivery_tag, method.multiple, acked)
            self.owner.pump()

    def _settle(self, tag: int, multiple: bool, acked: bool) -> None:
        if multiple:  # every one up to the tag; 0 stands for all
            for known in list(itertools.takewhile(lambda known: known <= tag or not tag, self.written)):
                self._settle_one(self.written.pop(known), acked)
        elif tag in self.written:
            self._settle_one(self.written.pop(tag), acked)

    def _settle_one(self, written: Written, acked: bool) -> None:
        send = written.lane.head
        if not acked:
            detail = f"The broker did not take it (nack): a queue is full or failed ({where(send)})"
            self.owner.stop(written.lane, (Outcome.ROAD, "Nacked", detail))
        elif written.returned:
            self.owner.stop(written.lane, returned(send))
        else:
            self.owner.confirm(written)

    # The broker closes the channel.

    def _closed(self, channel: Any, reason: Any) -> None:
        if channel is not self._channel or not isinstance(reason, exceptions.ChannelClosedByBroker):
            return  # closed by us, or with its connection, whose end answers for all
        was_checking, self.state = self.state == "checking", "closing"
        self.owner.catch_up()
        if was_checking:
            self._not_checked(reason.reply_code, reason.reply_text)
        else:
            self._find_guilty(reason.reply_code, reason.reply_text)
        self.owner.pump()

    def _not_checked(self, code: int, text: str) -> None:
        if code == 403 and self._declares:  # may not declare; perhaps it is there already
            self._declares = False
            self.begin()
            return
        self._declares = self.main
        self._refuse(lambda send: refusal(send, code, text, "TopologyMismatch" if code == 406 else ""))

    def _refuse(self, verdict: Callable[[Send], Verdict]) -> None:
        self.state, self._refused, self._refused_until = "refused", verdict, time.monotonic() + CHECK_AGAIN
        maybe, never = self.give_up()
        for lane in maybe + never:
            self.owner.stop(lane, verdict(lane.head))

    def _find_guilty(self, code: int, text: str) -> None:
        unconfirmed = list(self.written.values())
        self.written.clear()
        if len(unconfirmed) == 1:
            lane = unconfirmed[0].lane
            self.owner.stop(lane, judge(lane.head, code, text))
        else:
            self.suspects.extend(unconfirmed)
        self.state = "new"
        if self.suspects or self.ready:
            self.begin()
