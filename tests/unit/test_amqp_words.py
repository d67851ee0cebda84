"""What is said about a refusal and a lost connection, and what an AMQP URL may hold."""

from __future__ import annotations

import pytest
from pika import exceptions

from outbox_core.errors import TransportError
from outbox_core.transports.amqp_judge import explain, judge, returned
from outbox_core.transports.amqp_link import HEARTBEAT, parse_url
from outbox_core.transports.base import Outcome, Send

SEND = Send(tag=1, message_id="m", exchange="events", routing_key="shop.sold", body=b"x" * 20)


@pytest.mark.parametrize(
    ("code", "text", "outcome", "error"),
    [
        (404, "NOT_FOUND - no exchange 'events'", Outcome.REFUSED, "ExchangeNotFound"),
        (403, "ACCESS_REFUSED - cannot publish to internal exchange", Outcome.REFUSED, "AccessRefused"),
        (406, "message size 20 is larger than configured max size 10", Outcome.INVALID, "MessageTooLarge"),
        (311, "CONTENT_TOO_LARGE", Outcome.INVALID, "MessageTooLarge"),
        (406, "PRECONDITION_FAILED - invalid expiration", Outcome.INVALID, "BadProperty"),
        (406, "PRECONDITION_FAILED - user_id property set to 'x'", Outcome.INVALID, "BadProperty"),
        (406, "PRECONDITION_FAILED - something else", Outcome.REFUSED, "PreconditionFailed"),
        (541, "INTERNAL_ERROR", Outcome.REFUSED, "ChannelClosed"),
    ],
)  # fmt: skip
def test_a_refusal_is_judged_and_names_exchange_routing_key_and_what_the_broker_said(
    code: int, text: str, outcome: Outcome, error: str
) -> None:
    found, name, detail = judge(SEND, code, text)
    assert (found, name) == (outcome, error)
    assert all(word in detail for word in ('"events"', '"shop.sold"', str(code), text))


def test_a_returned_message_says_why() -> None:
    assert returned(SEND) == (
        Outcome.RETURNED, "Unroutable", 'Unroutable: no queue is bound to "shop.sold" on exchange "events"',
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (exceptions.ConnectionClosedByBroker(320, "CONNECTION_FORCED - bye"), "320 CONNECTION_FORCED - bye"),
        (exceptions.AMQPHeartbeatTimeout("x"), "no heartbeat"),
        (exceptions.ProbableAuthenticationError("x"), "user or password"),
        (exceptions.ProbableAccessDeniedError("x"), "virtual host"),
        (
            exceptions.AMQPConnectionError(ConnectionRefusedError(111, "Connection refused")),
            "Connection refused",
        ),
        (exceptions.StreamLostError("Stream connection lost: x"), "Stream connection lost"),
        (None, "ended"),
    ],
)
def test_a_lost_connection_is_explained(error: BaseException | None, words: str) -> None:
    assert words in explain(error)


def test_a_url_keeps_its_own_query_and_gets_our_heartbeat() -> None:
    parameters = parse_url("amqp://u:p@rabbit:5673/shop?frame_max=8192&blocked_connection_timeout=5")
    assert (parameters.host, parameters.port, parameters.virtual_host) == ("rabbit", 5673, "shop")
    assert (parameters.frame_max, parameters.heartbeat, parameters.blocked_connection_timeout) == (
        8192,
        HEARTBEAT,
        None,
    )
    assert parse_url("amqp://rabbit/?heartbeat=0").heartbeat == 0


@pytest.mark.parametrize(
    "url",
    ["amqp://u:a-secret@h:port/", "amqp://u:a-secret@h/?frame_max=12", "amqp://u:a-secret@h/?nonsense=1"],
)
def test_a_url_that_cannot_be_read_is_an_error_without_the_password(url: str) -> None:
    with pytest.raises(TransportError, match="AMQP_URL") as caught:
        parse_url(url)
    assert "a-secret" not in str(caught.value)
