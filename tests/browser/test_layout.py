"""What must stay in sight, and that nothing is cut off on a narrow screen."""

from __future__ import annotations

import pytest

from dashboard.demo import shop
from outbox_core.clock import database_now
from outbox_core.models import Duplicate, Tally
from tests.browser.visits import live, sign_in
from tests.integration import situations

pytestmark = pytest.mark.django_db(transaction=True)

PHONE = {"width": 390, "height": 844}

# Every element that sticks out of its panel, or of the page, to the right; what scrolls by itself may.
CUT_OFF = """() => [...document.querySelectorAll("main *, header *")].filter((node) => {
  const box = node.getBoundingClientRect();
  if (!box.width || node.closest(".visually-hidden, svg, .scroll:has(> svg), pre, [hidden]")) return false;
  const frame = node.closest(".panel, .numbers > li")?.getBoundingClientRect();
  return box.right > Math.min(innerWidth, frame?.right ?? innerWidth) + 1;
}).map((node) => `${node.tagName} ${node.className} ${node.textContent.trim().slice(0, 30)}`)"""


def test_the_selection_bar_stays_in_sight_of_rows_far_down(live_server_daphne, browser):
    messages = [situations.dead() for _ in range(50)]
    page = browser.new_page(viewport={"width": 1280, "height": 700})
    live(sign_in(page, live_server_daphne, "operator", "/messages/?state=dead"))
    bar = page.locator("#selection")
    for message in (messages[-1], messages[25], messages[0]):
        row = page.locator(f"tr[data-message-id='{message.message_id}']")
        row.scroll_into_view_if_needed()
        row.locator("input[type=checkbox]").check()
        box = bar.bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= 700 - box["height"]
    page.evaluate("scrollTo(0, 0)")
    box = bar.bounding_box()
    assert box is not None and box["y"] + box["height"] <= 701


@pytest.mark.parametrize("size", [PHONE, {"width": 1280, "height": 900}], ids=["phone", "desk"])
def test_nothing_is_cut_off(size, live_server_daphne, browser):
    shop.open_shop()
    dead = situations.dead(key="a-rather-long-key-of-an-order-0123456789")
    sent = situations.dispatched("a.rather.long.type.of.a.message.about.nothing")
    situations.received(sent, "retrying", consumer="a-consumer-with-a-long-name", error="no stock " * 40)
    for consumer in ("letters", "reports", "stock"):
        situations.received(sent, "dead", consumer=consumer)
    Tally.objects.create(
        minute=database_now(), worker="dispatcher-a", destination="events", kind="dead", count=12
    )
    situations.worker(partitions=64, rate=210, wakeup="notify")
    situations.worker("consumer", "vm-of-some-host-4711", silent=300)
    Duplicate.objects.create(
        consumer="reports", message_id=str(sent.message_id), type=sent.type, cause="resend", same_payload=False,
        digest="0" * 64,
    )  # fmt: skip
    page = sign_in(browser.new_page(viewport=size), live_server_daphne, "operator", "/")
    for path in (
        "/", "/messages/", "/messages/?state=dead", f"/messages/{dead.message_id}/", f"/messages/{sent.message_id}/",
        f"/messages/{sent.message_id}/?dialog=redispatch", "/duplicates/", "/workers/", "/audit/", "/demo/",
    ):  # fmt: skip
        page.goto(live_server_daphne + path)
        live(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], path
        found = page.evaluate(CUT_OFF)
        assert found == [], f"{path}: {found}"
