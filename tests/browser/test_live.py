"""The live view: what moves and what must not, and what happens when the socket goes."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from outbox_core.models import Parked
from outbox_core.operations import verbs
from tests.browser.visits import live, person, sign_in
from tests.integration import situations
from tests.integration.situations import ANA
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_rows_never_move_under_the_pointer(live_server_daphne, browser):
    old = situations.dispatched()
    page = live(sign_in(browser.new_page(), live_server_daphne, "operator", "/messages/"))
    row = page.locator(f"tr[data-message-id='{old.message_id}']")
    row.hover()
    before = row.bounding_box()
    new = situations.dispatched()
    page.wait_for_selector("#newer a")
    expect(page.locator("#newer a")).to_contain_text("1")
    expect(page.locator("#messages tr[data-message-id]")).to_have_count(1)
    # The line that says so stands above the rows and pushes them only by its own height.
    page.click("#newer a")
    page.wait_for_selector(f"tr[data-message-id='{new.message_id}']")
    assert before is not None
    ids = page.locator("#messages tr[data-message-id]").evaluate_all(
        "rows => rows.map(row => row.dataset.messageId)"
    )
    assert ids == [str(new.message_id), str(old.message_id)]


def test_a_button_that_is_pressed_stays_until_it_is_released(live_server_daphne, browser):
    message = situations.dead()
    page = live(
        sign_in(browser.new_page(), live_server_daphne, "operator", f"/messages/{message.message_id}/")
    )
    page.hover("[data-verb=mark]")
    page.mouse.down()
    Parked.objects.update(failures=42)
    with page.expect_event("requestfinished", lambda request: "/messages/" in request.url):
        page.evaluate("document.body.dispatchEvent(new CustomEvent('outboard:want'))")
    page.wait_for_timeout(300)  # it would be replaced by now
    expect(page.locator("#head")).not_to_contain_text("42 failures")
    page.mouse.up()
    page.wait_for_selector("dialog#operation[open]")
    page.locator("#head", has_text="42 failures").wait_for()


def test_a_row_that_changed_is_grey_and_cannot_be_selected(live_server_daphne, browser):
    message = situations.dead()
    page = live(sign_in(browser.new_page(), live_server_daphne, "operator", "/messages/?state=dead"))
    verbs.act("mark", message.message_id, actor=ANA, reason="by hand")
    row = page.locator(f"tr.changed[data-message-id='{message.message_id}'][data-state=marked]")
    row.wait_for()
    assert row.locator("input[type=checkbox]").is_disabled()
    expect(row).to_contain_text("ana")


def test_ticked_rows_open_details_and_typed_filters_survive_updates(live_server_daphne, browser):
    kept = situations.dead(key="kept")
    page = live(sign_in(browser.new_page(), live_server_daphne, "operator", "/messages/"))
    page.check(f"tr[data-message-id='{kept.message_id}'] input[type=checkbox]")
    page.fill("[name=key]", "half a wo")
    for n in range(5):
        situations.dispatched(key=f"other-{n}")
    page.wait_for_selector("#newer a[data-count='5']")
    assert page.is_checked(f"tr[data-message-id='{kept.message_id}'] input[type=checkbox]")
    assert page.input_value("[name=key]") == "half a wo"
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert "" not in ids


def test_paused_means_paused_and_resuming_catches_up(live_server_daphne, browser):
    page = live(sign_in(browser.new_page(), live_server_daphne, "operator", "/messages/"))
    page.click("#pause")
    page.wait_for_selector("body[data-live=paused]")
    message = situations.dispatched()
    wait_until(
        lambda: int(page.get_attribute("#tick", "data-tick") or 0) > 0
    )  # the tick came, and was not followed
    expect(page.locator("#messages tr[data-message-id]")).to_have_count(0)
    page.click("#pause")
    page.wait_for_selector(f"tr[data-message-id='{message.message_id}']")


def test_one_socket_for_each_tab_and_none_after_leaving(live_server_daphne, browser, tmp_path):
    def open_sockets() -> int:
        log = (tmp_path / "daphne.log").read_text()
        return log.count('"WSCONNECT /ws/live/"') - log.count('"WSDISCONNECT /ws/live/"')

    message = situations.dispatched()
    page = live(sign_in(browser.new_page(), live_server_daphne, "operator", "/"))
    for _ in range(3):
        for path in ("/messages/", f"/messages/{message.message_id}/", "/"):
            page.goto(live_server_daphne + path)
            live(page)
    wait_until(lambda: open_sockets() == 1)
    page.close()
    wait_until(lambda: open_sockets() == 0)


def test_a_page_whose_viewer_loses_the_permission_says_so(live_server_daphne, browser):
    page = live(sign_in(browser.new_page(), live_server_daphne, "viewer", "/messages/"))
    browser.allow("403")
    person("viewer").groups.clear()
    situations.dispatched()
    page.wait_for_selector("body[data-live=denied]")
    expect(page.locator("#stale")).to_be_visible()
    expect(page.locator("#messages tr[data-message-id]")).to_have_count(0)


def test_a_message_page_shows_what_happens_meanwhile(live_server_daphne, browser):
    message = situations.pending()
    page = live(
        sign_in(browser.new_page(), live_server_daphne, "operator", f"/messages/{message.message_id}/")
    )
    page.wait_for_selector("#head[data-state=pending]")
    from outbox_core.models import Pending
    from outbox_core.wakeup import CHANGED, announce

    situations.confirm(message, Pending.objects.get().position, 1, "dispatcher-q")
    announce("default", CHANGED)
    page.wait_for_selector("#head[data-state=dispatched]")
    expect(page.locator("#timeline [data-kind=confirmed]")).to_contain_text("dispatcher-q")
    expect(page.locator("[data-verb=redispatch]")).to_have_count(1)


def test_back_shows_the_state_of_now(live_server_daphne, browser):
    message = situations.dead()
    page = live(sign_in(browser.new_page(), live_server_daphne, "operator", "/messages/"))
    page.click(f"tr[data-message-id='{message.message_id}'] a[id^=open]")
    live(page)
    verbs.act("discard", message.message_id, actor=ANA, reason="x")
    page.go_back()
    page.wait_for_selector(f"tr[data-message-id='{message.message_id}'][data-state=discarded]")
