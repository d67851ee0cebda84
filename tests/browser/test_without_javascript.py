"""Everything works with forms and links alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from dashboard.demo import shop
from dashboard.demo.models import Product
from outbox_core.models import Message, Operation
from outbox_core.operations import inspect, verbs
from tests.browser.visits import sign_in
from tests.integration import situations
from tests.integration.situations import ANA

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def page(live_server_daphne, browser):
    return sign_in(browser.new_page(java_script_enabled=False), live_server_daphne, "operator")


def test_an_act_asks_for_a_reason_and_is_done(page, live_server_daphne):
    message = situations.dead(key="k")
    page.click("nav >> text=Messages")
    page.click("nav.tabs >> text=Dead")
    page.click(f"tr[data-message-id='{message.message_id}'] a:has-text('order.paid')")
    page.click("[data-verb=retry]")
    expect(page.locator("dialog#operation")).to_be_visible()
    page.fill("[name=reason]", "no script needed")
    page.click("dialog#operation [type=submit]")
    page.wait_for_url(f"{live_server_daphne}/messages/{message.message_id}/")
    expect(page.locator(".notice.success")).to_contain_text("pending")
    assert Operation.objects.get().reason == "no script needed"


def test_a_refusal_is_a_page_that_names_who_was_first(page, browser, live_server_daphne):
    message = situations.dead()
    page.goto(f"{live_server_daphne}/messages/{message.message_id}/?dialog=mark")
    verbs.act("discard", message.message_id, actor=ANA, reason="first")
    page.fill("[name=reason]", "second")
    browser.allow("409")
    page.click("dialog#operation [type=submit]")
    expect(page.locator("#operation-problem")).to_contain_text("ana")
    assert inspect.standing(message).state == "discarded"
    assert Operation.objects.count() == 1


def test_lists_are_paged_by_links(page, live_server_daphne):
    for n in range(60):
        situations.dispatched(key=f"k-{n}")
    page.goto(f"{live_server_daphne}/messages/?state=dispatched")
    rows = page.locator("#messages tr[data-message-id]")
    expect(rows).to_have_count(50)
    page.click("a[rel=next]")
    expect(rows).to_have_count(10)
    page.click("a[rel=prev]")
    expect(rows).to_have_count(50)


def test_a_filter_is_a_form_and_stays_in_the_address(page, live_server_daphne):
    situations.dispatched(key="wanted")
    situations.dispatched(key="other")
    page.goto(f"{live_server_daphne}/messages/")
    page.fill("[name=key]", "wanted")
    page.click("form.filters button")
    page.wait_for_url("**key=wanted**")
    expect(page.locator("#messages tr[data-message-id]")).to_have_count(1)


def test_the_shop_sells(page, live_server_daphne):
    shop.open_shop()
    product = Product.objects.first()
    page.goto(f"{live_server_daphne}/demo/")
    page.fill(f"[data-product='{product.pk}'] [name=price]", "19.75")
    page.click(f"[data-product='{product.pk}'] button:has-text('Change')")
    expect(page.locator(".notice.success")).to_contain_text("19.75")
    assert Message.objects.get().type == "catalog.price_changed"
    page.fill(f"[data-product='{product.pk}'] [name=price]", "free")
    page.click(f"[data-product='{product.pk}'] button:has-text('Change')")
    expect(page.locator(".notice.error")).to_contain_text("price must be a number")
    assert Message.objects.count() == 1
