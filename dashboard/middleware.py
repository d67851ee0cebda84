"""Headers that every answer carries: of the dashboard's own views in any project, of all in the standalone one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class AnswerHeaders:
    """Strict content security policy, no storing, and what an answer varies on, for what no view answers too."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]) -> None:
        self.get_response = get_response
        self.asynchronous = iscoroutinefunction(get_response)
        if self.asynchronous:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if self.asynchronous:
            return self._answer(request)
        return add_headers(cast(HttpResponse, self.get_response(request)))

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        return add_headers(await cast(Awaitable[HttpResponse], self.get_response(request)))


def with_headers(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A view whose answers carry the headers in projects without the middleware. Without them the browser takes the
    fragment of a page, kept from htmx's request of the same address, for the page."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return add_headers(view(request, *args, **kwargs))

    return answer


def add_headers(response: HttpResponse) -> HttpResponse:
    """The headers, on an answer; a second time they change nothing."""
    patch_vary_headers(response, ["Accept", "HX-Request", "Cookie"])
    response["Cache-Control"] = "no-store"
    response["Content-Security-Policy"] = POLICY
    return response
