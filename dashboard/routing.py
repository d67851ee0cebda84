"""What another project adds to its ASGI application: the socket, for pages of the same origin only."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from channels.routing import URLRouter
from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.urls import path, re_path

from dashboard.consumers import LiveSocket

Application = Any


class SameOrigin:
    """Refuses with 403 a handshake whose Origin is not the host that it asks (or in CSRF_TRUSTED_ORIGINS).

    Browsers send the session cookie with sockets opened by any site, so the Origin is what tells them apart. Unlike
    channels' own validator it still holds where ALLOWED_HOSTS is "*", and it compares the port.
    """

    def __init__(self, application: Application) -> None:
        self.application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        headers = {name: value.decode("latin1") for name, value in scope.get("headers", [])}
        if same_origin(headers.get(b"origin", ""), headers.get(b"host", "")):
            return await self.application(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)


def same_origin(origin: str, host: str) -> bool:
    """Is this Origin header that of a page of this site?"""
    allowed = settings.ALLOWED_HOSTS or (["localhost", "127.0.0.1", "[::1]"] if settings.DEBUG else [])
    domain, _port = split_domain_port(host.lower())
    if not domain or not validate_host(domain, allowed):
        return False
    return urlsplit(origin).netloc.lower() == host.lower() or origin in settings.CSRF_TRUSTED_ORIGINS


live_socket: Any = SameOrigin(LiveSocket.as_asgi())
nowhere: Any = WebsocketDenier.as_asgi()
websocket_urlpatterns: list[Any] = [path("ws/live/", live_socket)]
# Any other address is refused; channels would raise an error for it.
sockets = URLRouter([*websocket_urlpatterns, re_path(r"", nowhere)])
