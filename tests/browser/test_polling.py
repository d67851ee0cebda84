"""A page of a server that has no websocket route."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.visits import sign_in
from tests.integration import situations

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_says_that_there_are_no_live_updates_and_goes_on_looking(live_server_without_socket, browser):
    browser.allow("/ws/live/")  # its handshake fails
    browser.allow("console: [object Event]")  # htmx says so for each socket that fails
    page = sign_in(browser.new_page(), live_server_without_socket, "operator", "/messages/")
    page.wait_for_selector("body[data-socket=none]", timeout=40_000)
    said = page.locator("#live-state")
    assert said.inner_text().startswith("No live updates here: every 10 s")
    assert "dashboard.routing" in (said.locator(".is-polling").get_attribute("title") or "")
    message = situations.dead()
    page.wait_for_selector(f"tr[data-message-id='{message.message_id}']", timeout=15_000)
    page.click("#pause")
    page.wait_for_selector("body[data-live=paused]")
    expect(said).to_contain_text("Paused")
