"""The socket and the feed behind it: who is let in, what comes, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.contrib.sessions.backends.db import SessionStore
from django.test import Client

from dashboard import consumers
from dashboard.live import INTERVAL, Feed, feed
from dashboard.routing import same_origin, sockets
from outbox_core.wakeup import CHANGED, announce
from tests.browser.visits import person
from tests.integration import situations
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

HOST = b"localhost"
ORIGIN = b"http://localhost"


def cookie(name: str) -> bytes:
    """The session cookie of a person who is signed in."""
    client = Client()
    client.force_login(person(name))
    return f"sessionid={client.cookies['sessionid'].value}".encode()


def socket(
    cookie: bytes = b"", origin: bytes | None = ORIGIN, path: str = "/ws/live/"
) -> WebsocketCommunicator:
    headers = [(b"host", HOST), (b"cookie", cookie)]
    if origin is not None:
        headers.append((b"origin", origin))
    return WebsocketCommunicator(sockets, path, headers)


def refusal_code(connection: WebsocketCommunicator) -> int:
    """The close code that follows on an accepted handshake."""

    async def ask() -> int:
        accepted, _ = await connection.connect(timeout=10)
        assert accepted
        message = await connection.receive_output(timeout=10)
        assert message["type"] == "websocket.close"
        return int(message["code"])

    return asyncio.run(ask())


def test_an_anonymous_socket_is_accepted_and_closed_with_4401():
    assert refusal_code(socket()) == 4401
    assert refusal_code(socket(b"sessionid=nonsense")) == 4401
    assert len(feed) == 0


def test_a_socket_without_the_permission_is_closed_with_4403():
    assert refusal_code(socket(cookie("stranger"))) == 4403


@pytest.mark.parametrize("origin", [b"https://evil.example", b"http://localhost:81", b"null", b"", None])
def test_a_foreign_origin_is_refused_before_the_handshake(origin):
    async def ask() -> Any:
        connection = socket(cookie_, origin)
        accepted, _ = await connection.connect(timeout=10)
        return accepted

    cookie_ = cookie("viewer")
    assert asyncio.run(ask()) is False


def test_another_address_is_refused(settings):
    async def ask() -> Any:
        return (await socket(path="/ws/other/").connect(timeout=10))[0]

    assert asyncio.run(ask()) is False


def test_the_origin_must_be_the_host_even_if_every_host_is_allowed(settings):
    settings.ALLOWED_HOSTS = ["*"]
    assert same_origin("http://shop.example:8000", "shop.example:8000")
    assert not same_origin("http://evil.example", "shop.example")
    assert not same_origin("http://shop.example:81", "shop.example:8000")
    settings.ALLOWED_HOSTS = ["shop.example"]
    assert not same_origin("http://evil.example", "evil.example")
    settings.CSRF_TRUSTED_ORIGINS = ["https://front.example"]
    assert same_origin("https://front.example", "shop.example")


def test_a_change_becomes_a_tick_without_data():
    viewer = cookie("viewer")

    async def watch() -> str:
        connection = socket(viewer)
        assert (await connection.connect(timeout=10))[0]
        await connection.receive_from(timeout=10)
        await asyncio.sleep(1)  # what the watch says when it begins
        while not await connection.receive_nothing(0.3):
            await connection.receive_from(timeout=10)
        await asyncio.to_thread(change)
        tick = await connection.receive_from(timeout=3)
        await connection.disconnect()
        return tick

    def change() -> None:
        from django.db import connections

        situations.pending("secret.type", key="secret-key", payload={"secret": 1})
        connections.close_all()

    tick = asyncio.run(watch())
    assert 'id="tick"' in tick
    assert "secret" not in tick
    assert tick.count("<") == 2  # one element
    wait_until(lambda: len(feed) == 0)


def test_a_viewer_who_signs_out_is_shut_out_at_the_next_check(monkeypatch):
    monkeypatch.setattr(consumers, "CHECK_EVERY", 0.3)
    viewer = cookie("viewer")

    async def watch() -> int:
        connection = socket(viewer)
        assert (await connection.connect(timeout=10))[0]
        await connection.receive_from(timeout=10)
        await asyncio.to_thread(sign_out)
        while True:
            message = await connection.receive_output(timeout=10)
            if message["type"] == "websocket.close":
                return int(message["code"])

    def sign_out() -> None:
        from django.db import connections

        SessionStore(viewer.decode().split("=")[1]).delete()
        connections.close_all()

    assert asyncio.run(watch()) == 4401
    assert len(feed) == 0


def test_a_listener_hears_at_most_four_times_a_second_and_never_misses_the_last():
    async def listen() -> list[float]:
        own = Feed()
        listener = own.join()
        heard: list[float] = []
        began = time.monotonic()
        while time.monotonic() - began < 1.2:
            own.wake()
            await asyncio.sleep(0)
            if listener.event.is_set():
                await listener.change()
                heard.append(time.monotonic())
        own.wake()
        await asyncio.wait_for(listener.change(), 1)
        own.leave(listener)
        return heard

    heard = asyncio.run(listen())
    assert 4 <= len(heard) <= 6
    assert all(later - earlier >= INTERVAL * 0.95 for earlier, later in pairwise(heard))


def test_the_feed_stops_its_watches_with_its_last_listener():
    async def come_and_go() -> Feed:
        own = Feed()
        first, second = own.join(), own.join()
        assert len(own) == 2
        own.leave(first)
        assert own._watches
        own.leave(second)
        assert not own._watches
        return own

    own = asyncio.run(come_and_go())
    announce("default", CHANGED)
    own.wake()  # nobody listens: nothing happens
    assert len(own) == 0


@pytest.mark.parametrize("name", ["viewer", "stranger"])
def test_a_page_that_closes_while_it_is_told_something_is_no_error(name, monkeypatch, caplog):
    who = cookie(name)
    tried: list[asyncio.Event] = []

    async def gone(self: Any, *args: Any, **kwargs: Any) -> None:
        tried[0].set()
        raise ConnectionResetError("the peer went away")

    monkeypatch.setattr(consumers.LiveSocket, "send", gone)
    monkeypatch.setattr(consumers.LiveSocket, "close", gone)

    async def watch() -> None:
        tried.append(asyncio.Event())
        connection = socket(who)
        assert (await connection.connect(timeout=10))[0]
        await asyncio.wait_for(tried[0].wait(), 10)
        await asyncio.sleep(0.1)
        await connection.disconnect()

    asyncio.run(watch())
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    assert len(feed) == 0


def test_many_sockets_come_and_go_and_leave_nothing():
    viewer = cookie("viewer")

    async def crowd() -> None:
        for _ in range(3):
            connections = [socket(viewer) for _ in range(20)]
            for connection in connections:
                assert (await connection.connect(timeout=20))[0]
            for connection in connections:
                await connection.receive_from(timeout=20)
            assert len(feed) == 20
            for connection in connections:
                await connection.disconnect()

    asyncio.run(crowd())
    wait_until(lambda: len(feed) == 0)
