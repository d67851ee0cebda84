"""Headers that every answer carries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class AnswerHeaders:
    """Strict content security policy, no storing, and what an answer varies on."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]) -> None:
        self.get_response = get_response
        self.asynchronous = iscoroutinefunction(get_response)
        if self.asynchronous:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if self.asynchronous:
            return self._answer(request)
        return _with_headers(cast(HttpResponse, self.get_response(request)))

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        return _with_headers(await cast(Awaitable[HttpResponse], self.get_response(request)))


def _with_headers(response: HttpResponse) -> HttpResponse:
    patch_vary_headers(response, ["Accept", "HX-Request", "Cookie"])
    response["Cache-Control"] = "no-store"
    response["Content-Security-Policy"] = POLICY
    return response
