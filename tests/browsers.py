"""Chromium for browser tests.

A page that logs an error, breaks the content security policy or fails to load something fails its test.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    sync_playwright,
)

ARGUMENTS = [
    "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-gpu", "--disable-quic", "--no-first-run",
]  # fmt: skip
SCREENSHOTS = Path(__file__).resolve().parent.parent / "test-results"


class WatchedBrowser:
    """Opens pages and watches them. `problems` is what went wrong; `allow` what a test provokes on purpose."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self.contexts: list[BrowserContext] = []
        self.problems: list[str] = []
        self._allowed: list[str] = []

    def allow(self, text: str) -> None:
        """From now on, a problem whose description contains `text` is none."""
        self._allowed.append(text)

    def new_context(self, **options: Any) -> BrowserContext:
        context = self._chromium.new_context(**options)
        context.set_default_timeout(10_000)
        context.on("page", self._watch)
        self.contexts.append(context)
        return context

    def new_page(self, **options: Any) -> Page:
        """A page in a context of its own (nothing shared with other pages), watched."""
        return self.new_context(**options).new_page()

    def _report(self, problem: str) -> None:
        if not any(text in problem for text in self._allowed):
            self.problems.append(problem)

    def _watch(self, page: Page) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._report(f"script error: {error}"))
        page.on("requestfailed", self._on_failed)
        page.on("response", self._on_response)

    def _on_console(self, message: ConsoleMessage) -> None:
        # Chromium reports broken content security policy as an error of the console.
        if message.type == "error":
            self._report(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            self._report(f"request failed: {request.method} {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 500:
            self._report(f"{response.status}: {response.request.method} {response.url}")

    def screenshots(self, name: str) -> None:
        SCREENSHOTS.mkdir(exist_ok=True)
        pages = [page for context in self.contexts for page in context.pages]
        for number, page in enumerate(pages, 1):
            page.screenshot(path=SCREENSHOTS / f"{name}-{number}.png")

    def close(self) -> None:
        for context in self.contexts:
            context.close()


def executable() -> str | None:
    """The browser that CHROMIUM names, or the installed one."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named
    return next(
        filter(
            None, map(shutil.which, ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome"))
        ),
        None,
    )


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One Chromium for the tests of a file."""
    path = executable()
    if path is None:
        missing = "No browser: CHROMIUM is not set and no chromium is installed (apt-get install chromium)."
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    # Playwright's loop runs in this thread, so that Django takes the whole file for asynchronous.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        instance = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield instance
        instance.close()


@pytest.fixture
def browser(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[WatchedBrowser]:
    """`browser.new_page()`; a problem of a page fails the test, and screenshots go to test-results/."""
    watched = WatchedBrowser(chromium)
    failures = request.session.testsfailed
    yield watched
    try:
        if watched.problems or request.session.testsfailed > failures:
            watched.screenshots(request.node.name.replace("/", "_"))
    finally:
        watched.close()
    assert not watched.problems, "\n".join(watched.problems)
