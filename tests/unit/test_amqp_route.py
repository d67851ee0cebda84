"""One exchange's channel: confirms in any order, and the message that closes the channel."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pika import exceptions

from outbox_core.transports.amqp_judge import Verdict
from outbox_core.transports.amqp_ledger import Lane
from outbox_core.transports.amqp_route import Route, Written
from outbox_core.transports.base import Outcome, Send


class Channel:
    """Records what is asked for; the test answers."""

    def __init__(self, number: int, on_open: Callable[[Any], None]) -> None:
        self.channel_number, self.on_open, self.asked = number, on_open, []
        self.answer: Callable[[Any], None] = lambda frame: None

    def add_on_close_callback(self, callback: Any) -> None:
        self.on_close = callback

    def add_on_return_callback(self, callback: Any) -> None:
        self.on_return = callback

    def exchange_declare(self, name: str, callback: Any, **options: Any) -> None:
        self.asked.append(options)
        self.declared = callback

    def confirm_delivery(self, answered: Any, callback: Any) -> None:
        self.confirms, self.selected = answered, callback

    def open_up(self) -> None:
        self.on_open(self)
        if hasattr(self, "declared"):
            self.declared(None)
        self.selected(None)

    def acks(self, tag: int, multiple: bool = False, name: str = "Basic.Ack") -> None:
        self.confirms(SimpleNamespace(method=SimpleNamespace(NAME=name, delivery_tag=tag, multiple=multiple)))

    def closes(self, code: int, text: str) -> None:
        self.on_close(self, exceptions.ChannelClosedByBroker(code, text))


class Publisher:
    """The owner of a route: remembers what became of each message."""

    def __init__(self) -> None:
        self.clock = SimpleNamespace(now=lambda: 0.0)
        self.confirmed: list[tuple[int, bool]] = []
        self.stopped: list[tuple[int, Verdict]] = []
        self.channels: list[Channel] = []

    def channel(self, on_open_callback: Callable[[Any], None]) -> Channel:
        self.channels.append(Channel(len(self.channels) + 1, on_open_callback))
        return self.channels[-1]

    def confirm(self, written: Written) -> None:
        self.confirmed.append((written.lane.head.tag, written.lane.twice))

    def stop(self, lane: Lane, verdict: Verdict) -> None:
        self.stopped.append((lane.head.tag, verdict))

    def confirm_later(self, settle: Callable[[], None]) -> bool:
        return False

    def catch_up(self) -> None: ...

    def pump(self) -> None: ...


def lane(n: int) -> Lane:
    return Lane([Send(tag=n, message_id=f"m{n}", exchange="e", routing_key="k", body=b"")], 0)


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


def route_with(publisher: Publisher, count: int, main: bool = False) -> Route:
    """An open route with messages 1 to `count` written, under the tags of the same numbers."""
    route = Route(publisher, publisher, "e", main)  # type: ignore[arg-type]
    route.begin()
    publisher.channels[-1].open_up()
    route.wrote([lane(n) for n in range(1, count + 1)], 0.0)
    return route


def confirmed(publisher: Publisher) -> list[int]:
    return [tag for tag, _ in publisher.confirmed]


def test_confirms_settle_their_own_message_in_any_order(publisher: Publisher) -> None:
    route = route_with(publisher, 3)
    for tag in (2, 3, 1):
        publisher.channels[-1].acks(tag)
    assert confirmed(publisher) == [2, 3, 1]
    assert route.idle


def test_multiple_covers_all_that_are_outstanding_up_to_the_tag_and_no_more(publisher: Publisher) -> None:
    route = route_with(publisher, 6)
    publisher.channels[-1].acks(2)
    publisher.channels[-1].acks(4, multiple=True)
    assert confirmed(publisher) == [2, 1, 3, 4]
    assert list(route.written) == [5, 6]
    publisher.channels[-1].acks(0, multiple=True)
    assert confirmed(publisher)[-2:] == [5, 6]


def test_a_confirm_of_an_unknown_or_settled_tag_does_nothing(publisher: Publisher) -> None:
    route_with(publisher, 1)
    for _ in range(2):
        publisher.channels[-1].acks(1)
    publisher.channels[-1].acks(77)
    assert confirmed(publisher) == [1]


def test_a_nack_may_be_multiple_too(publisher: Publisher) -> None:
    route_with(publisher, 3)
    publisher.channels[-1].acks(2, multiple=True, name="Basic.Nack")
    publisher.channels[-1].acks(3)
    assert [(tag, verdict[:2]) for tag, verdict in publisher.stopped] == [
        (1, (Outcome.ROAD, "Nacked")), (2, (Outcome.ROAD, "Nacked")),
    ]  # fmt: skip
    assert confirmed(publisher) == [3]


def test_a_returned_message_is_found_by_its_id_and_settled_by_its_ack(publisher: Publisher) -> None:
    route_with(publisher, 3)
    publisher.channels[-1].on_return(None, None, SimpleNamespace(message_id="m2"), b"")
    publisher.channels[-1].acks(3, multiple=True)
    assert confirmed(publisher) == [1, 3]
    [(tag, verdict)] = publisher.stopped
    assert (tag, verdict[0]) == (2, Outcome.RETURNED)


def send_suspects_again(publisher: Publisher, route: Route, guilty: dict[int, tuple[int, str]]) -> None:
    """Play the broker: confirm each suspect that comes alone, close the channel for a guilty one."""
    while route.state == "checking" or route.suspects:
        if route.state == "checking":
            publisher.channels[-1].open_up()
        if not route.suspects:
            break
        assert route.writable
        suspect = route.suspects.popleft().lane
        route.wrote([suspect], 0.0, twice=True)
        assert not route.writable
        if suspect.head.tag in guilty:
            publisher.channels[-1].closes(*guilty[suspect.head.tag])
        else:
            publisher.channels[-1].acks(next(iter(route.written)))


def test_of_many_the_one_that_closes_the_channel_alone_is_guilty_and_the_others_say_twice(
    publisher: Publisher,
) -> None:
    route = route_with(publisher, 6)
    publisher.channels[-1].acks(1)
    publisher.channels[-1].closes(406, "PRECONDITION_FAILED - something")
    guilty = {3: (406, "invalid header"), 4: (403, "ACCESS_REFUSED - topic")}
    send_suspects_again(publisher, route, guilty)
    assert publisher.confirmed == [(1, False), (2, True), (5, True), (6, True)]
    assert [(tag, verdict[:2]) for tag, verdict in publisher.stopped] == [
        (3, (Outcome.INVALID, "BadProperty")), (4, (Outcome.REFUSED, "AccessRefused")),
    ]  # fmt: skip
    assert route.idle


def test_new_messages_wait_while_suspects_are_sent_again(publisher: Publisher) -> None:
    route = route_with(publisher, 2)
    publisher.channels[-1].closes(406, "PRECONDITION_FAILED")
    route.add(lane(9))
    send_suspects_again(publisher, route, {})
    assert confirmed(publisher) == [1, 2]
    assert route.writable
    assert [one.head.tag for one in route.ready] == [9]


def test_an_exchange_that_is_gone_refuses_suspects_and_all_that_comes_soon(publisher: Publisher) -> None:
    route = route_with(publisher, 2)
    publisher.channels[-1].closes(404, "NOT_FOUND - no exchange 'e'")
    publisher.channels[-1].on_open(publisher.channels[-1])
    publisher.channels[-1].closes(404, "NOT_FOUND - no exchange 'e'")
    route.add(lane(9))
    assert [(tag, verdict[:2]) for tag, verdict in publisher.stopped] == [
        (n, (Outcome.REFUSED, "ExchangeNotFound")) for n in (1, 2, 9)
    ]
    assert len(publisher.channels) == 2


def test_a_main_exchange_that_may_not_be_declared_is_looked_up(publisher: Publisher) -> None:
    route = Route(publisher, publisher, "e", main=True)  # type: ignore[arg-type]
    route.begin()
    publisher.channels[0].on_open(publisher.channels[0])
    publisher.channels[0].closes(403, "ACCESS_REFUSED")
    publisher.channels[1].open_up()
    assert publisher.channels[0].asked == [{"exchange_type": "topic", "durable": True}]
    assert publisher.channels[1].asked == [{"passive": True}]
    assert route.state == "open"


def test_the_end_of_a_connection_tells_what_may_be_sent_from_what_was_not(publisher: Publisher) -> None:
    route = route_with(publisher, 2)
    route.ready.append(lane(9))
    publisher.channels[-1].on_close(publisher.channels[-1], exceptions.StreamLostError("gone"))
    maybe, never = route.give_up()
    assert [one.head.tag for one in maybe] == [1, 2]
    assert [one.head.tag for one in never] == [9]
    assert publisher.stopped == []
