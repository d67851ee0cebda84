"""Type, key, payload, headers and errors come from strangers: they are text on every page, and nothing runs."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from outbox_core.models import Pending
from tests.browser.visits import live, sign_in
from tests.integration import situations

pytestmark = pytest.mark.django_db(transaction=True)

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(1)</script>"
TEMPLATE = "{{7*7}}{% now 'Y' %}"


@pytest.fixture
def page(live_server_daphne, browser):
    page = live(sign_in(browser.new_page(), live_server_daphne, "operator", "/messages/"))
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    yield page
    assert alerts == []
    expect(page.locator("img[src=x]")).to_have_count(0)


def _strange():
    message = situations.pending(
        IMAGE, SCRIPT, {"a": IMAGE, SCRIPT: TEMPLATE, "'\"": "\" onmouseover='alert(1)"},
        headers={"x-strange": SCRIPT, IMAGE: TEMPLATE}, correlation_id=TEMPLATE,
    )  # fmt: skip
    Pending.objects.filter(pk=message.pk).update(
        failures=1, attempts=1, error_class=IMAGE[:20], last_error=f"{SCRIPT} {IMAGE}"
    )
    return message


def test_a_strange_message_is_text_in_a_live_row_and_on_its_page(page, live_server_daphne):
    message = _strange()
    row = page.locator(f"tr[data-message-id='{message.message_id}']")
    row.wait_for()
    expect(row).to_contain_text(IMAGE)
    expect(row).to_contain_text(SCRIPT)
    page.goto(f"{live_server_daphne}/messages/{message.message_id}/")
    live(page)
    page.wait_for_selector("#lag:not(:empty)")
    expect(page.locator("h1").first).to_have_text(IMAGE)
    payload = page.locator("#payload").inner_text()
    assert "<img src=x onerror=alert(1)>" in payload
    assert TEMPLATE in payload
    assert "49" not in payload
    expect(page.locator("#headers")).to_contain_text(IMAGE)
    page.goto(f"{live_server_daphne}/")
    live(page)
    page.wait_for_selector("#lag:not(:empty)")
    expect(page.locator("#needs")).to_contain_text(IMAGE)


def test_a_strange_reason_is_text_in_the_toast_the_timeline_and_the_audit(page, live_server_daphne):
    from tests.browser.visits import act

    message = situations.dead(type=IMAGE)
    page.goto(f"{live_server_daphne}/messages/{message.message_id}/")
    act(page, "discard", f"{IMAGE} {SCRIPT}")
    page.wait_for_selector("#head[data-state=discarded]")
    expect(page.locator("#why")).to_contain_text(SCRIPT)
    page.goto(f"{live_server_daphne}/audit/")
    expect(page.locator("#operations")).to_contain_text(f"{IMAGE} {SCRIPT}")


def test_a_key_that_looks_like_an_address_stays_one_filter(page, live_server_daphne):
    key = "a&b=c#d/é 😀?x"
    message = situations.dispatched(key=key)
    page.goto(f"{live_server_daphne}/messages/")
    page.click(f"tr[data-message-id='{message.message_id}'] td.mono a")
    page.wait_for_selector(f"tr[data-message-id='{message.message_id}']")
    assert page.input_value("[name=key]") == key


def test_every_digit_of_a_number_is_kept(page, live_server_daphne):
    from decimal import Decimal

    big = 10**40 + 1
    message = situations.pending(
        payload={"big": big, "price": Decimal("12.50"), "small": Decimal("1E-30"), "safe": 2**53 + 1}
    )
    page.goto(f"{live_server_daphne}/messages/{message.message_id}/")
    text = page.locator("#payload").inner_text()
    assert str(big) in text
    assert "12.50" in text
    assert str(2**53 + 1) in text


def test_masked_values_never_reach_the_page(page, live_server_daphne):
    message = situations.pending(
        payload={"email": "ada@secret.example", "deep": [{"password": "hunter2"}], "open": "yes"}
    )
    for query in ("", "?payload=all", "?payload=raw"):
        page.goto(f"{live_server_daphne}/messages/{message.message_id}/{query}")
        assert "secret.example" not in page.content()
        assert "hunter2" not in page.content()
        assert "yes" in page.content()
