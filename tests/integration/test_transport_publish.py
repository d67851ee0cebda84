"""The sending side: the same demands on both transports."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from outbox_core.clock import lease_clock
from outbox_core.transports import transport
from outbox_core.transports.base import Outcome, Publisher, Queue, Transport
from tests.integration.carrying import (
    contents,
    each_alone,
    later,
    message,
    outcomes,
    send_all,
    settle,
    until_usable,
)  # fmt: skip

pytestmark = pytest.mark.django_db(transaction=True)

CONFIRMED, RETURNED, REFUSED = Outcome.CONFIRMED, Outcome.RETURNED, Outcome.REFUSED
INVALID, UNSENT = Outcome.INVALID, Outcome.UNSENT


@pytest.fixture
def broker(exchange: str) -> Transport:
    return transport()


@pytest.fixture
def queue(broker: Transport, exchange: str) -> Queue:
    """A queue bound to every type that begins with `shop`."""
    made = Queue(f"{exchange}-shop", ("shop.#",), prefetch=1000)
    assert broker.apply_topology([made]) == []
    return made


@pytest.fixture
def publisher(broker: Transport) -> Iterator[Publisher]:
    made = broker.publisher()
    made.open()
    until_usable(made)
    yield made
    made.close()


def test_a_message_is_confirmed_and_arrives_as_it_was(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    headers = {
        "outbox-attempt": 2, "big": 2**62, "yes": True, "list": [1, "two", False], "table": {"deep": {"er": "ä"}},
    }  # fmt: skip
    send = message(exchange, "shop.sold", correlation_id="c-1", headers=headers, body='[1.10, "ä"]'.encode())
    results = send_all(publisher, [[send]])
    assert results[send.tag].outcome is CONFIRMED
    assert results[send.tag].send is send
    [came] = contents(broker, queue)
    assert (came.message_id, came.type, came.exchange, came.routing_key) == (
        send.message_id,
        "shop.sold",
        exchange,
        "shop.sold",
    )
    assert (came.body, came.content_type, came.correlation_id, came.app_id, came.timestamp) == (
        send.body, "application/json", "c-1", "outboard", send.timestamp,
    )  # fmt: skip
    assert dict(came.headers) == headers
    assert came.queue == queue.name
    assert not came.redelivered


def test_an_empty_body_and_empty_properties_are_a_message_too(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    send = message(exchange, body=b"", headers={}, correlation_id="", app_id="")
    assert outcomes(send_all(publisher, [[send]]), [send]) == [CONFIRMED]
    [came] = contents(broker, queue)
    assert (came.body, dict(came.headers), came.correlation_id) == (b"", {}, "")


def test_a_body_of_many_frames_arrives_whole(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    send = message(exchange, body=bytes(range(256)) * 4096)
    assert outcomes(send_all(publisher, [[send]]), [send]) == [CONFIRMED]
    [came] = contents(broker, queue)
    assert came.body == send.body


def test_a_message_that_no_queue_is_bound_for_comes_back_and_names_exchange_and_key(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    lost, kept = message(exchange, "nowhere.at_all"), message(exchange, "shop.sold")
    results = send_all(publisher, [[lost], [kept]])
    assert outcomes(results, [lost, kept]) == [RETURNED, CONFIRMED]
    assert results[lost.tag].error == "Unroutable"
    assert '"nowhere.at_all"' in results[lost.tag].detail
    assert f'"{exchange}"' in results[lost.tag].detail


def test_a_message_that_is_not_mandatory_is_confirmed_without_a_queue(
    publisher: Publisher, exchange: str
) -> None:
    send = message(exchange, "nowhere.at_all", mandatory=False)
    assert outcomes(send_all(publisher, [[send]]), [send]) == [CONFIRMED]


def test_a_lane_keeps_its_order_and_stops_at_the_first_that_is_not_confirmed(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    lane = [message(exchange, "shop.sold" if n != 250 else "nowhere.at_all", tag=n) for n in range(500)]
    other = [message(exchange, tag=f"other-{n}") for n in range(50)]
    results = send_all(publisher, [lane, other])
    assert outcomes(results, lane) == [CONFIRMED] * 250 + [RETURNED] + [UNSENT] * 249
    assert outcomes(results, other) == [CONFIRMED] * 50
    came = [delivery.message_id for delivery in contents(broker, queue)]
    ours = {send.message_id for send in lane}
    assert [id_ for id_ in came if id_ in ours] == [send.message_id for send in lane[:250]]


def test_many_lanes_run_beside_each_other_and_each_keeps_its_order(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    lanes = [[message(exchange, tag=(lane, n)) for n in range(10)] for lane in range(60)]
    results = send_all(publisher, lanes)
    assert Counter(result.outcome for result in results.values()) == {CONFIRMED: 600}
    place = {send.message_id: send.tag for lane in lanes for send in lane}
    came = [place[delivery.message_id or ""] for delivery in contents(broker, queue)]
    assert len(came) == 600
    for lane in range(60):
        assert [n for of, n in came if of == lane] == list(range(10))


def test_more_messages_than_the_window_are_all_sent_once(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    sends = [message(exchange) for _ in range(1500)]
    for at in range(0, 1500, 300):
        publisher.submit(each_alone(sends[at : at + 300]), later())
    results = settle(publisher)
    assert Counter(result.outcome for result in results) == {CONFIRMED: 1500}
    assert {result.send.tag for result in results} == {send.tag for send in sends}
    came = Counter(delivery.message_id for delivery in contents(broker, queue))
    assert came == Counter(send.message_id for send in sends)


def test_the_same_id_in_two_lanes_has_two_results(publisher: Publisher, queue: Queue, exchange: str) -> None:
    first = message(exchange, tag="first")
    second = message(exchange, "nowhere.at_all", tag="second", message_id=first.message_id)
    results = send_all(publisher, [[first, second]])
    assert outcomes(results, [first, second]) == [CONFIRMED, RETURNED]


def test_a_missing_exchange_is_named_and_stops_no_other(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    lost = [message(f"{exchange}-missing") for _ in range(20)]
    kept = [message(exchange) for _ in range(20)]
    lanes = each_alone(send for pair in zip(lost, kept, strict=True) for send in pair)
    results = send_all(publisher, lanes)
    assert set(outcomes(results, lost)) == {REFUSED}
    assert set(outcomes(results, kept)) == {CONFIRMED}
    result = results[lost[0].tag]
    assert result.error == "ExchangeNotFound"
    assert f"{exchange}-missing" in result.detail
    assert '"shop.sold"' in result.detail
    assert publisher.state.usable


def test_a_lane_may_change_its_exchange(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    lane = [message(exchange), message(f"{exchange}-missing"), message(exchange)]
    assert outcomes(send_all(publisher, [lane]), lane) == [CONFIRMED, REFUSED, UNSENT]


def test_the_default_exchange_leads_to_the_queue_of_that_name(
    broker: Transport, publisher: Publisher, queue: Queue
) -> None:
    there, nowhere = message("", routing_key=queue.name), message("", routing_key=f"{queue.name}-missing")
    assert outcomes(send_all(publisher, [[there], [nowhere]]), [there, nowhere]) == [CONFIRMED, RETURNED]
    [came] = contents(broker, queue)
    assert (came.exchange, came.routing_key) == ("", queue.name)


@pytest.mark.parametrize(
    "key", ["a" * 256, "\N{GRINNING FACE}" * 64, "é" * 128], ids=["ascii", "emoji", "accents"]
)
def test_a_routing_key_of_more_than_255_bytes_is_invalid_and_says_so(
    publisher: Publisher, queue: Queue, exchange: str, key: str
) -> None:
    before, long, after = message(exchange), message(exchange, routing_key=key), message(exchange)
    results = send_all(publisher, [[before], [long], [after]])
    assert outcomes(results, [before, long, after]) == [CONFIRMED, INVALID, CONFIRMED]
    assert "routing_key" in results[long.tag].detail
    assert "256" in results[long.tag].detail
    assert "255" in results[long.tag].detail


def test_a_routing_key_of_255_bytes_is_sent(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    send = message(exchange, routing_key="shop." + "a" * 250)
    assert outcomes(send_all(publisher, [[send]]), [send]) == [CONFIRMED]


@pytest.mark.parametrize(
    ("headers", "named"),
    [({"much": 2**63}, "much"), ({"odd": object()}, "odd"), ({"n" * 256: 1}, "nnn")],
    ids=["65-bit", "object", "name"],
)
def test_a_header_without_a_wire_form_is_invalid_and_named(
    publisher: Publisher, queue: Queue, exchange: str, headers: dict[str, object], named: str
) -> None:
    before, bad, after = message(exchange), message(exchange, headers=headers), message(exchange)
    results = send_all(publisher, [[before], [bad], [after]])
    assert outcomes(results, [before, bad, after]) == [CONFIRMED, INVALID, CONFIRMED]
    assert named in results[bad.tag].detail


def test_after_the_deadline_nothing_is_written(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str
) -> None:
    sends = [message(exchange) for _ in range(10)]
    results = send_all(publisher, [sends[:5], sends[5:]], deadline=lease_clock() - 1)
    assert set(outcomes(results, sends)) == {UNSENT}
    assert contents(broker, queue) == []


@pytest.mark.pair("real")  # the embedded broker takes a submitted batch at once
def test_what_is_queued_comes_back_when_its_deadline_passes(
    publisher: Publisher, queue: Queue, exchange: str
) -> None:
    lane = [message(exchange) for _ in range(20_000)]
    publisher.submit([lane], lease_clock() + 0.3)
    results = settle(publisher)
    counts = Counter(result.outcome for result in results)
    assert counts[CONFIRMED] + counts[UNSENT] == 20_000
    assert counts[UNSENT] > 0
    first_unsent = outcomes({r.send.tag: r for r in results}, lane).index(UNSENT)
    assert first_unsent == counts[CONFIRMED]


def test_an_extended_deadline_holds_for_what_is_queued(
    publisher: Publisher, queue: Queue, exchange: str
) -> None:
    lane = [message(exchange) for _ in range(1_000)]
    publisher.submit([lane], lease_clock() + 0.25)
    publisher.extend(later())
    assert Counter(result.outcome for result in settle(publisher)) == {CONFIRMED: 1_000}


@pytest.mark.pair("real")  # the embedded broker takes a submitted batch at once
def test_a_deadline_that_is_taken_back_brings_what_is_queued_back_at_once(
    publisher: Publisher, queue: Queue, exchange: str
) -> None:
    lane = [message(exchange) for _ in range(20_000)]
    publisher.submit([lane], later())
    publisher.extend(0)
    counts = Counter(result.outcome for result in settle(publisher, patience=2))
    assert counts[UNSENT] > 15_000


def test_a_fence_drops_what_is_not_written_and_keeps_confirms_as_stale(
    broker: Transport, publisher: Publisher, queue: Queue, exchange: str, pair: str
) -> None:
    old = [[message(exchange) for _ in range(40)] for _ in range(50)]
    publisher.submit(old, later())
    publisher.fence()
    assert publisher.outstanding == 0
    new = [message(exchange) for _ in range(50)]
    publisher.submit(each_alone(new), later())
    results = settle(publisher)
    came = Counter(delivery.message_id for delivery in contents(broker, queue))
    results += publisher.take()
    stale = [result for result in results if result.stale]
    assert {result.send.tag for result in results if not result.stale} == {send.tag for send in new}
    assert {result.outcome for result in stale} <= {CONFIRMED}
    assert max(came.values()) == 1
    assert {r.send.message_id for r in results} == set(came)
    assert len(stale) < 2000 or pair == "embedded"  # that one takes a submitted batch at once


def test_results_that_were_not_taken_before_a_fence_are_stale_after_it(
    publisher: Publisher, queue: Queue, exchange: str, wait_until: Callable[..., object]
) -> None:
    kept, lost = message(exchange), message(f"{exchange}-missing")
    publisher.submit([[kept], [lost]], later())
    wait_until(lambda: publisher.outstanding == 0)
    publisher.fence()
    [result] = publisher.take()
    assert (result.send.tag, result.outcome, result.stale) == (kept.tag, CONFIRMED, True)


def test_wake_ends_a_wait_and_so_does_the_next_result(
    publisher: Publisher, queue: Queue, exchange: str
) -> None:
    publisher.wait(0)
    began = time.monotonic()
    publisher.wake()
    publisher.wait(30)
    assert time.monotonic() - began < 5
    publisher.submit([[message(exchange)]], later())
    while publisher.outstanding:
        publisher.wait(30)
    assert publisher.wait(30)  # there are results: it does not block
    assert time.monotonic() - began < 10


def test_a_closed_publisher_answers_for_what_it_is_given(broker: Transport, exchange: str) -> None:
    made = broker.publisher()
    made.open()
    until_usable(made)
    made.close()
    sends = [message(exchange), message(exchange)]
    results = send_all(made, [sends])
    assert set(outcomes(results, sends)) <= {Outcome.ROAD, UNSENT}
