"""The socket of an open page: it sends ticks, and nothing else; what the client sends is ignored."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from contextlib import suppress
from importlib import import_module
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.db import connections
from django.http import HttpRequest, parse_cookie

from dashboard.live import Listener, feed
from dashboard.permissions import VIEW, allows

log = logging.getLogger("outbox.live")

SIGNED_OUT, FORBIDDEN, FAILED = 4401, 4403, 1011
CHECK_EVERY = 30.0  # seconds between two looks at the session and the permission
TICK = '<i id="tick" data-tick="{number}" data-behind="{behind}"></i>'


class Gone(Exception):
    """The page was closed while something was sent to it."""


def refusal(session_key: str) -> int:
    """0 if this session may see messages, else the close code that says why not. Reads the database."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key or None)
    try:
        user = get_user(request)
        if not user.is_authenticated:
            return SIGNED_OUT
        return 0 if allows(user, VIEW) else FORBIDDEN
    finally:
        connections.close_all()  # this thread's: it may not be used again for long


class LiveSocket(AsyncWebsocketConsumer):
    """Ticks at most four times a second, while the viewer may see messages.

    A refused socket is accepted first and closed with 4401 or 4403: a browser reports a refused handshake as 1006,
    the code of a lost connection, and would try again for ever.
    """

    _task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await self.accept()
        self._task = asyncio.create_task(self._serve())

    async def disconnect(self, code: int) -> None:
        if self._task is not None:
            self._task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Server to client only."""

    async def _serve(self) -> None:
        try:
            if not await self._refused():
                await self._listen()
        except Gone:
            log.debug("A page was closed", extra={"action": "socket_gone"})
        except Exception:  # the database may be away: the page reconnects after this code
            log.exception("A live socket failed", extra={"action": "socket_failed"})
            with suppress(Exception):  # the page may be gone as well
                await self.close(FAILED)

    async def _listen(self) -> None:
        listener = feed.join()
        try:
            await self._tick(0, 0.0)  # what changed between the page and the socket
            await self._follow(listener)
        finally:
            feed.leave(listener)

    async def _follow(self, listener: Listener) -> None:
        number, checked = 0, time.monotonic()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, checked + CHECK_EVERY - time.monotonic())):
                    behind = await listener.change()
                    number += 1
                    await self._tick(number, behind)
            if time.monotonic() - checked >= CHECK_EVERY:
                if await self._refused():
                    return
                checked = time.monotonic()

    async def _tick(self, number: int, behind: float) -> None:
        await self._to_page(self.send(TICK.format(number=number, behind=round(behind * 1000))))

    async def _refused(self) -> bool:
        # Its own thread: thread-sensitive code of all sockets shares one, and one blocked query would hold them all.
        code = await database_sync_to_async(refusal, thread_sensitive=False)(self._session_key())
        if code:
            await self._to_page(self.close(code))
        return bool(code)

    async def _to_page(self, sending: Awaitable[None]) -> None:
        try:
            await sending
        except Exception as error:  # each server has its own error for a page that was closed just now
            raise Gone from error

    def _session_key(self) -> str:
        cookies: dict[str, Any] = {}
        for name, value in self.scope.get("headers", []):
            if name == b"cookie":
                cookies.update(parse_cookie(value.decode("latin1")))
        return str(cookies.get(settings.SESSION_COOKIE_NAME, ""))
