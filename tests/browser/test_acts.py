"""Retry, redispatch, mark and discard by their buttons: one effect, one audit row, and refusals that say who."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from outbox_core.models import Operation, Parked, Pending
from outbox_core.operations import inspect, verbs
from tests.browser.visits import act, live, sign_in
from tests.integration import situations
from tests.integration.situations import ANA

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("verb", "make", "state"),
    [
        ("retry", situations.dead, "pending"),
        ("redispatch", situations.dispatched, "pending"),
        ("mark", situations.dead, "marked"),
        ("discard", situations.retrying, "discarded"),
    ],
)
def test_a_button_has_one_effect_and_one_audit_row(live_server_daphne, browser, verb, make, state):
    message = make(key="k-1")
    page = live(
        sign_in(browser.new_page(), live_server_daphne, "operator", f"/messages/{message.message_id}/")
    )
    answer = act(page, verb, "the queue is bound again")
    assert answer.status == 200
    page.wait_for_selector(f"#head[data-state={state}]")
    page.wait_for_selector(".toast.ok")
    expect(page.locator("dialog#operation")).to_have_count(0)
    row = Operation.objects.get()
    assert (row.verb, row.actor, row.reason, row.origin) == (
        verb,
        "operator",
        "the queue is bound again",
        "dashboard",
    )
    assert inspect.standing(message).state == state
    expect(page.locator("#timeline [data-kind=operated]")).to_contain_text("operator")


def test_a_page_that_is_out_of_date_is_refused_and_told_who_changed_it(live_server_daphne, browser):
    message = situations.dead()
    page = sign_in(browser.new_page(), live_server_daphne, "operator", f"/messages/{message.message_id}/")
    page.click("[data-verb=retry]")
    page.wait_for_selector("dialog#operation[open]")
    verbs.act("discard", message.message_id, actor=ANA, reason="not needed")
    page.fill("dialog#operation [name=reason]", "try again")
    browser.allow("409")
    with page.expect_response(lambda r: r.request.method == "POST") as answer:
        page.click("dialog#operation [type=submit]")
    assert answer.value.status == 409
    problem = page.locator("dialog#operation [role=alert]")
    problem.wait_for()
    expect(problem).to_contain_text("ana")
    expect(problem).to_contain_text("discarded")
    assert Operation.objects.count() == 1
    assert Parked.objects.get().state == "discarded"


def test_a_double_click_has_one_effect(live_server_daphne, browser):
    message = situations.dead()
    page = sign_in(browser.new_page(), live_server_daphne, "operator", f"/messages/{message.message_id}/")
    page.click("[data-verb=mark]")
    page.wait_for_selector("dialog#operation[open]")
    page.fill("dialog#operation [name=reason]", "delivered by hand")
    page.dblclick("dialog#operation [type=submit]")
    page.wait_for_selector("#head[data-state=marked]")
    assert Operation.objects.count() == 1


def test_two_people_with_the_same_page_have_one_effect_and_the_loser_is_told(live_server_daphne, browser):
    message = situations.dead()
    pages = []
    for name in ("operator", "operator"):
        page = sign_in(browser.new_page(), live_server_daphne, name, f"/messages/{message.message_id}/")
        page.click("[data-verb=retry]")
        page.wait_for_selector("dialog#operation[open]")
        page.fill("dialog#operation [name=reason]", "bound again")
        pages.append(page)
    browser.allow("409")
    statuses = []
    for page in pages:
        with page.expect_response(lambda r: r.request.method == "POST") as answer:
            page.click("dialog#operation [type=submit]")
        statuses.append(answer.value.status)
    assert statuses == [200, 409]
    expect(pages[1].locator("dialog#operation [role=alert]")).to_contain_text("operator")
    assert Operation.objects.count() == 1
    assert Pending.objects.count() == 1


def test_a_message_in_flight_offers_no_act_and_says_who_sends_it(live_server_daphne, browser):
    message = situations.pending()
    situations.own("dispatcher-z", in_flight=[message])
    page = sign_in(browser.new_page(), live_server_daphne, "operator", f"/messages/{message.message_id}/")
    expect(page.locator("[data-verb]")).to_have_count(0)
    assert "dispatcher-z" in page.locator("[data-refused=discard]").get_attribute("title")
    expect(page.locator("#why")).to_contain_text("dispatcher-z")


def test_a_button_works_on_a_row_that_came_by_live_update(live_server_daphne, browser):
    page = live(sign_in(browser.new_page(), live_server_daphne, "operator", "/messages/"))
    expect(page.locator("#messages tr[data-message-id]")).to_have_count(0)
    message = situations.dead()
    row = page.locator(f"tr[data-message-id='{message.message_id}']")
    row.wait_for()
    row.hover()
    answer = act(page, "retry", "live row")
    assert answer.status == 200
    page.wait_for_selector(f"tr[data-message-id='{message.message_id}'][data-state=pending]")
    assert Operation.objects.get().reason == "live row"


def test_the_redispatch_dialog_says_what_it_means_for_each_consumer(live_server_daphne, browser):
    from django.utils import timezone

    from outbox_core.models import Receipt

    message = situations.dispatched(type="orders.started")
    Receipt.objects.create(
        consumer="payments", message_id=str(message.message_id), received_at=timezone.now(), outcome="processed",
        digest=message.digest,
    )  # fmt: skip
    page = sign_in(browser.new_page(), live_server_daphne, "operator", f"/messages/{message.message_id}/")
    page.click("[data-verb=redispatch]")
    page.wait_for_selector("dialog#operation[open]")
    expect(page.locator("dialog#operation li[data-consumer=payments]")).to_contain_text("without effect")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog#operation", state="detached")


def test_the_keyboard_reaches_everything(live_server_daphne, browser):
    first, second = situations.dead(key="a"), situations.dead(key="b")
    page = live(sign_in(browser.new_page(), live_server_daphne, "operator", "/messages/?state=dead"))
    page.wait_for_selector("#lag:not(:empty)")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr.current")).to_have_attribute("data-message-id", str(first.message_id))
    page.keyboard.press("k")
    expect(page.locator("tr.current")).to_have_attribute("data-message-id", str(second.message_id))
    page.keyboard.press("x")
    expect(page.locator("#selection [data-count]")).to_have_text("1")
    page.keyboard.press("r")
    page.wait_for_selector("dialog#operation[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog#operation", state="detached")
    page.keyboard.press("p")
    page.wait_for_selector("body[data-live=paused]")
    page.keyboard.press("p")
    page.wait_for_selector("body[data-live=live]")
    page.keyboard.press("?")
    page.wait_for_selector("dialog#keys[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type(str(first.message_id))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/messages/{first.message_id}/")
