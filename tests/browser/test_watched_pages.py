"""The `browser` fixture sees what goes wrong on a page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.processes import wait_until

POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'"
PAGES = {
    "/good": "<!doctype html><title>Good</title><link rel=icon href=data:,><h1>Good</h1>",
    "/log": "<!doctype html><link rel=icon href=data:,><script src=/log.js></script>",
    "/log.js": "console.error('lost the socket')",
    "/throw": "<!doctype html><link rel=icon href=data:,><script src=/throw.js></script>",
    "/throw.js": "throw new Error('no such row')",
    "/inline": "<!doctype html><link rel=icon href=data:,><script>window.x = 1</script>",
    "/foreign": "<!doctype html><link rel=icon href=data:,><script src=http://127.0.0.1:9/x.js></script>",
    "/missing": "<!doctype html><link rel=icon href=data:,><script src=/nowhere.js></script>",
    "/abort": "<!doctype html><link rel=icon href=data:,><script src=/abort.js></script>",
    "/abort.js": "const c = new AbortController(); fetch('/good', {signal: c.signal}).catch(() => 0); c.abort()",
}


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = PAGES.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "text/html")
        self.send_header("Content-Security-Policy", POLICY + "; img-src data:")
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_good_page_has_no_problem(browser, site):
    page = browser.new_page()
    page.goto(f"{site}/good")
    assert page.title() == "Good"
    assert browser.problems == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/log", "lost the socket"),
        ("/throw", "no such row"),
        ("/inline", "Content Security Policy"),
        ("/foreign", "Content Security Policy"),
        ("/missing", "404"),
    ],
)
def test_a_bad_page_has_a_problem_that_says_why(browser, site, path, problem):
    page = browser.new_page()
    page.goto(site + path)
    wait_until(lambda: page.evaluate("1") and browser.problems)
    assert problem in "\n".join(browser.problems)
    browser.problems.clear()


def test_an_aborted_request_is_no_problem(browser, site):
    page = browser.new_page()
    with page.expect_event("requestfailed"):
        page.goto(f"{site}/abort")
    assert browser.problems == []


def test_a_test_may_allow_what_it_provokes(browser, site):
    browser.allow("lost the socket")
    page = browser.new_page()
    with page.expect_console_message():
        page.goto(f"{site}/log")
    assert browser.problems == []
