"""The pages: what they show for messages in every state."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from html import unescape
from unittest import mock

import pytest
from django.test import Client

from outbox_core.models import Duplicate, FailedAttempt, Message, Operation, Pending
from outbox_core.operations import verbs
from tests.browser.visits import person
from tests.integration import situations
from tests.integration.situations import ANA

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    client = Client()
    client.force_login(person("operator"))
    return client


def text(client: Client, address: str, status: int = 200, **headers: str) -> str:
    answer = client.get(address, headers=headers)
    assert answer.status_code == status, answer.content.decode()[:500]
    return answer.content.decode()


def rows(page: str) -> dict[str, str]:
    """State by message id of the rows of a list."""
    return dict(re.findall(r'data-message-id="([^"]+)" data-row="\d+" data-state="(\w+)"', page))


def test_a_fresh_installation_says_how_to_publish_and_to_deliver(operator):
    page = text(operator, "/")
    assert "publish(" in page
    assert "outbox_dispatch" in page
    assert 'data-level="bad"' in page


def test_the_overview_counts_what_the_database_holds_and_links_to_it(operator):
    situations.pending()
    situations.pending()
    situations.retrying()
    situations.dead(key="k")
    page = text(operator, "/")
    for name, count in (("pending", 2), ("retrying", 1), ("dead", 1)):
        assert f'data-number="{name}" data-value="{count}"' in page
        listed = rows(text(operator, f"/messages/?state={name}"))
        assert list(listed.values()) == [name] * count


def test_a_list_holds_the_messages_of_its_state(operator):
    made = {
        "pending": situations.pending(), "retrying": situations.retrying(), "dead": situations.dead(),
        "dispatched": situations.dispatched(),
    }  # fmt: skip
    for verb in ("mark", "discard"):
        message = situations.dead()
        verbs.act(verb, message.message_id, actor=ANA, reason="r")
        made[f"{verb}ed"] = message
    for state, message in made.items():
        assert rows(text(operator, f"/messages/?state={state}")) == {str(message.message_id): state}
    assert len(rows(text(operator, "/messages/"))) == len(made)


def test_a_row_carries_its_version(operator):
    message = situations.dead()
    assert 'data-version="dead.0.0"' in text(operator, "/messages/")
    operation = verbs.act("retry", message.message_id, actor=ANA, reason="r").operation
    assert f'data-version="pending.0.{operation.pk}"' in text(operator, "/messages/")


def test_filters_choose_and_a_bad_one_is_named(operator):
    a, b = situations.dispatched(key="a", type="x.one"), situations.dispatched(key="b", type="x.two")
    assert set(rows(text(operator, "/messages/?key=a"))) == {str(a.message_id)}
    assert set(rows(text(operator, "/messages/?type=x.*"))) == {str(a.message_id), str(b.message_id)}
    assert set(rows(text(operator, "/messages/?since=1h&type=x.two"))) == {str(b.message_id)}
    assert rows(text(operator, "/messages/?until=1h")) == {}
    assert "is no time" in text(operator, "/messages/?since=tomorrow")
    assert "must be one of" in text(operator, "/messages/?state=lost")
    assert "a cursor of this list" in text(operator, "/messages/?after=nonsense")


@pytest.mark.parametrize(
    "query",
    [
        "since=99999-01-01",
        "since=2026-13-45",
        "after=m99999999999999999999",
        "key=%00",
        "since=0001-01-01T00:00%2B23:00",
        "rows=x,~,1~,,9999999999999999999",
    ],
)
def test_strange_addresses_are_no_server_errors(operator, query):
    for headers in ({}, {"HX-Request": "true"}):
        assert operator.get(f"/messages/?{query}", headers=headers).status_code == 200


def test_the_search_box_finds_ids_keys_and_types(operator):
    message = situations.dispatched(key="order-1", type="orders.paid")
    for query, address in (
        (str(message.message_id), f"/messages/{message.message_id}/"),
        ("order-1", "/messages/?key=order-1"),
        ("orders.paid", "/messages/?type=orders.paid"),
        ("paid", "/messages/?type=%2Apaid%2A"),
    ):
        assert operator.get("/messages/", {"q": query})["Location"] == address


def test_a_refresh_brings_only_what_changed_and_what_is_new(operator):
    still, changing = situations.dispatched(), situations.dead()
    shown = f"{changing.pk}~dead.0.0,{still.pk}~dispatched.{still.dispatches.get().pk}.0"
    htmx = {"HX-Request": "true"}
    assert rows(text(operator, f"/messages/?rows={shown}", **htmx)) == {}
    verbs.act("discard", changing.message_id, actor=ANA, reason="r")
    new = situations.dispatched()
    page = text(operator, f"/messages/?rows={shown}", **htmx)
    assert rows(page) == {str(new.message_id): "dispatched", str(changing.message_id): "discarded"}
    assert "<html" not in page
    held = text(operator, f"/messages/?rows={shown}&hold=1", **htmx)
    assert str(new.message_id) not in rows(held)
    assert 'data-count="1"' in held


def test_a_row_that_left_its_list_is_marked_as_changed(operator):
    message = situations.dead()
    verbs.act("mark", message.message_id, actor=ANA, reason="r")
    page = text(operator, f"/messages/?state=dead&rows={message.pk}~dead.0.0", **{"HX-Request": "true"})
    assert 'class="changed"' in page
    assert "disabled" in page
    assert "ana" in page


def test_the_message_page_says_why_and_what_to_do(operator):
    message = situations.dead(key="order-1")
    later = situations.aside("order-1")
    page = text(operator, f"/messages/{message.message_id}/")
    assert "Gave up after 10 failures" in page
    assert "no queue is bound to “order.paid”" in page
    assert "1 later message of key order-1 waits behind it." in page
    assert "outbox_topology --check" in page
    waiting = text(operator, f"/messages/{later.message_id}/")
    assert "Held back by a dead message of its key order-1" in waiting
    assert f"/messages/{message.message_id}/" in waiting


def test_the_page_of_a_message_that_waits_names_what_it_waits_for(operator):
    situations.own("dispatcher-a")
    first = situations.pending(key="k")
    second = situations.pending(key="k")
    delayed = situations.pending(delay=7200)
    assert "Due: the next turn" in text(operator, f"/messages/{first.message_id}/")
    assert "Waits for 1 earlier message of its key k." in text(operator, f"/messages/{second.message_id}/")
    assert "Delayed by its producer: due in 1 h 59 min" in text(operator, f"/messages/{delayed.message_id}/")


def test_a_missing_message_is_a_page_that_says_so(operator):
    page = text(operator, f"/messages/{uuid.uuid4()}/", 404)
    assert "No such message" in page
    assert "nav" in page
    assert "No such page" in text(operator, "/nowhere/", 404)


def test_a_long_payload_is_cut_and_can_be_seen_whole(operator):
    message = situations.pending(payload={"rows": [{"n": n, "text": "x" * 50} for n in range(5000)]})
    page = text(operator, f"/messages/{message.message_id}/")
    assert len(page) < 400_000
    assert "Cut here" in page
    whole = text(operator, f"/messages/{message.message_id}/?payload=all")
    assert "4999" in whole
    assert "Cut here" not in whole


def test_the_pages_cost_the_same_queries_however_many_rows_they_show(operator, django_assert_max_num_queries):
    for n in range(30):
        situations.dispatched(key=f"k-{n}")
        situations.retrying(key=f"r-{n}")
    for address, most in (("/messages/", 32), ("/", 50)):
        operator.get(address)
        with django_assert_max_num_queries(most):
            operator.get(address)


def test_the_ledger_of_duplicates_shows_cause_consumer_and_what_differs(operator):
    message = situations.dispatched()
    for consumer, cause, same in (
        ("basket", "resend", True),
        ("mail", "producer", False),
        ("", "producer", True),
    ):
        Duplicate.objects.create(
            consumer=consumer, message_id=str(message.message_id), type=message.type, cause=cause, same_payload=same,
            gap=timedelta(seconds=3), digest="ab" * 32,
        )  # fmt: skip
    Duplicate.objects.create(
        consumer="mail", message_id="<no uuid>", cause="race", same_payload=True, digest=""
    )

    def seen(query: str) -> list[str]:
        return re.findall(r'data-cause="(\w+)"', text(operator, f"/duplicates/{query}"))

    assert seen("") == ["race", "producer", "producer", "resend"]
    assert seen("?consumer=basket") == ["resend"]
    assert seen("?consumer=-") == ["producer"]
    assert seen("?payload=differs") == ["producer"]
    assert seen("?cause=race") == ["race"]
    assert seen(f"?message={message.message_id}") == ["producer", "producer", "resend"]
    assert "&lt;no uuid&gt;" in text(operator, "/duplicates/")
    assert "≠ abababab" in text(operator, "/duplicates/?payload=differs")
    needs = text(operator, "/").partition('id="needs"')[2].partition("</section>")[0]
    assert "1 differing" in needs and "consumer mail" in needs
    link = unescape(re.findall(r'href="([^"]+)"', needs)[0])
    assert re.findall(r'data-cause="(\w+)"', text(operator, link)) == ["producer"]


def test_the_workers_page_shows_who_is_silent_and_which_partitions_nobody_has(operator):
    from outbox_core.models import Partition

    situations.own("dispatcher-a")
    Partition.objects.filter(number__gte=60).update(lease=None)
    situations.worker(name="dispatcher-a")
    situations.worker(name="dispatcher-b", silent=300)
    page = text(operator, "/workers/")
    assert re.search(r'data-worker="dispatcher-a" data-level="ok"', page)
    assert re.search(r'data-worker="dispatcher-b" data-level="bad"', page)
    assert "1 silent" in page and "5 min" in page
    assert "4 without an owner" in page
    assert page.count("<rect ") == 64 + 1  # and the sign of the product


def test_the_audit_shows_who_did_what_and_verifies_the_chain(operator):
    message = situations.dead()
    verbs.act("mark", message.message_id, actor=ANA, reason="delivered by hand")
    page = text(operator, "/audit/?verify=1")
    assert "The chain is whole" in page
    assert "delivered by hand" in page
    assert "dead → marked" in page
    assert Operation.objects.count() == 1
    assert "delivered by hand" not in text(operator, "/audit/?actor=bob")


def test_older_and_newer_pages_meet_without_gap_or_overlap(operator):
    made = [str(situations.dispatched().message_id) for _ in range(120)][::-1]
    seen: list[str] = []
    address = "/messages/?state=dispatched"
    while address:
        page = text(operator, address)
        seen += rows(page)
        found = re.search(r'rel="next" href="([^"]+)"', page)
        address = found.group(1).replace("&amp;", "&") if found else ""
    assert seen == made
    last = text(operator, "/messages/?state=dispatched")
    second = re.search(r'rel="next" href="([^"]+)"', last).group(1).replace("&amp;", "&")
    back = re.search(r'rel="prev" href="([^"]+)"', text(operator, second)).group(1).replace("&amp;", "&")
    assert list(rows(text(operator, back))) == made[:50]


def test_a_message_with_an_error_of_a_stranger_is_escaped(operator):
    message = situations.retrying()
    Pending.objects.filter(pk=message.pk).update(
        error_class="Boom", last_error="<img src=x onerror=alert(1)>"
    )
    for address in ("/", "/messages/", f"/messages/{message.message_id}/"):
        page = text(operator, address)
        assert "<img" not in page
        assert "&lt;img" in page
    assert Message.objects.count() == 1


def test_the_overview_is_rendered_once_per_tick_for_viewers_of_equal_rights(
    operator, django_assert_max_num_queries, monkeypatch
):
    from dashboard import fragments
    from dashboard.live import feed

    monkeypatch.setattr(fragments, "OLDEST", 60.0)  # the tick alone decides, on a slow machine too
    other, viewer = Client(), Client()
    other.force_login(person("operator"))
    viewer.force_login(person("viewer"))
    htmx = {"HX-Request": "true"}
    feed.wake()
    first = text(operator, "/?window=1h", **htmx)
    with django_assert_max_num_queries(6):  # the session, the user and the permissions
        assert text(other, "/?window=1h", **htmx) == first
    assert "Latest operations" in first
    assert "Latest operations" not in text(viewer, "/?window=1h", **htmx)
    situations.dead()
    feed.wake()
    assert 'data-number="dead" data-value="1"' in text(other, "/?window=1h", **htmx)


def test_the_overview_names_what_consumers_and_destinations_do_not_take(operator):
    situations.received(situations.dispatched(), "dead", error="no stock\n  stock.py:7 in take")
    situations.received(situations.dispatched(), "retrying", consumer="letters")
    situations.stranded(2, "order.shipped")
    page = text(operator, "/")
    assert "consumer reports" in page and "no stock" in page and "stock.py" not in page
    assert "consumer letters" in page and "next try in" in page
    assert "order.shipped" in page and "one is tried at a time" in page
    assert page.count("1 at consumers") == 2


def test_a_dead_key_holds_back_nothing_until_there_is_something(operator):
    situations.dead(key="k")
    assert "holds back" not in text(operator, "/")
    situations.aside("k")
    assert "holds back 1 key" in text(operator, "/")


def test_a_message_that_a_consumer_gave_up_says_so_and_how_to_go_on(operator):
    message = situations.dispatched()
    situations.received(message, "dead", error="no stock\n  stock.py:7 in take")
    page = text(operator, f"/messages/{message.message_id}/")
    assert "Dispatched, but consumer reports gave up after 3 tries: no stock" in page
    assert "then redispatch" in page
    assert "reports: dead, no stock" in text(operator, "/messages/?state=dispatched")


def test_where_a_handler_failed_is_folded_and_follows_what_was_received(operator):
    message = situations.dispatched()
    handling = situations.received(message, "retrying")
    FailedAttempt.objects.create(
        message=message, foreign_id=str(message.message_id), consumer="reports", at=handling.received_at,
        worker="consumer-a", attempt=1, error_class="ValueError", detail="no stock\n  stock.py:7 in take",
        fingerprint="f" * 16, kind="transient",
    )  # fmt: skip
    page = text(operator, f"/messages/{message.message_id}/")
    assert page.index("reports failed at try 1: ValueError: no stock") < page.index("reports received it")
    assert re.search(r'<details id="more-[\d-]+failed">.*stock\.py:7 in take.*</details>', page, re.DOTALL)


def test_a_traceback_is_folded_to_its_last_line_and_a_long_error_to_its_beginning(operator):
    message = situations.dead()
    trace = "Traceback (most recent call last):\n  File x, line 7\nKeyError: 'stock'"
    for n, detail in enumerate((trace, "e" * 3000)):
        FailedAttempt.objects.create(
            message=message, worker="dispatcher-a", attempt=n + 7, error_class="Odd", detail=detail,
            fingerprint="f" * 16, kind="transient",
        )  # fmt: skip
    page = unescape(text(operator, f"/messages/{message.message_id}/"))
    line, folded = re.findall(
        r"<p>Attempt 7 failed: (.*?)</p><details id[^>]*>(.*?)</details>", page, re.DOTALL
    )[0]
    assert line.startswith("Odd: KeyError: 'stock'") and "File x" not in line
    assert "File x, line 7" in folded
    (line,) = re.findall(r"<p>Attempt 8 failed: Odd: (e+)…", page)
    assert len(line) < 250
    assert "e" * 3000 in page


def test_no_page_depends_on_a_middleware_for_htmx(operator, settings):
    assert not any("htmx" in name for name in settings.MIDDLEWARE)
    situations.pending()
    part = text(operator, "/messages/", **{"HX-Request": "true"})
    assert "<html" not in part and "hx-swap-oob" in part


def test_every_link_of_every_page_leads_to_a_page(operator):
    made = [situations.dead(key="k"), situations.aside("k"), situations.retrying(), situations.dispatched()]
    situations.received(made[3], "dead")
    situations.stranded(1)
    seen: set[str] = set()
    todo = [
        "/",
        "/messages/",
        "/duplicates/",
        "/workers/",
        "/demo/",
        *(f"/messages/{m.message_id}/" for m in made),
    ]
    while todo:
        address = todo.pop()
        if address in seen or len(seen) > 200:
            continue
        seen.add(address)
        answer = operator.get(address)
        assert answer.status_code in (200, 302), f"{address}: {answer.status_code}"
        if answer.status_code == 200:
            links = re.findall(r'<a [^>]*href="([^"#]+)"', answer.content.decode())
            todo += [unescape(link) for link in links if link.startswith("/") and "logout" not in link]


def test_a_number_that_stands_for_consumers_alone_leads_to_what_they_have_not_done(operator):
    situations.received(situations.dispatched(), "dead")
    page = text(operator, "/")
    assert re.search(r'<a href="#needs"[^>]*>(?:(?!</a>).)*data-number="dead" data-value="0"', page)
    assert "1 dead at consumers" in text(operator, "/messages/?state=dead")
    situations.dead()
    assert re.search(
        r'<a href="/messages/\?state=dead"[^>]*>(?:(?!</a>).)*data-number="dead"', text(operator, "/")
    )


def test_a_verdict_about_consumers_leads_to_them_from_every_page(operator):
    from outbox_core.operations.health import Verdict

    situations.received(situations.dispatched(), "dead")
    with mock.patch(
        "outbox_core.operations.health.verdict", return_value=Verdict("warn", "x", "", "overview", 1)
    ):
        assert '<a href="/#needs">What needs you' in text(operator, "/workers/")


def test_what_another_producer_sent_has_no_page_to_lead_to(operator):
    foreign = Message(message_id=uuid.uuid4(), type="foreign.thing", key="", digest="0" * 64)
    situations.received(foreign, "dead")
    page = text(operator, "/")
    assert "foreign.thing" in page and str(foreign.message_id) not in page


def test_of_several_that_a_consumer_has_not_done_the_button_opens_one(operator):
    made = [situations.dispatched(), situations.dispatched()]
    for message in made:
        situations.received(message, "retrying")
    page = text(operator, "/")
    assert "2 retrying" in page and "Open one" in page
    assert any(f'href="/messages/{m.message_id}/"' in page for m in made)


def test_an_act_that_does_not_help_at_a_consumer_names_the_one_that_does(operator):
    message = situations.dispatched()
    handling = situations.received(message, "dead")
    page = text(operator, f"/messages/{message.message_id}/")
    assert "consumer reports gave it up: redispatch it once the cause is mended" in page
    assert "dead at reports" in page
    answer = operator.post(
        f"/messages/{message.message_id}/retries/", {"reason": "x"}, headers={"Accept": "application/json"}
    )
    assert answer.status_code == 409
    assert "(consumer reports gave it up: redispatch it once the cause is mended)" in answer.json()["error"]
    dialog = text(operator, f"/messages/{message.message_id}/?dialog=redispatch")
    assert "it tries again from this copy" in dialog
    handling.state, handling.available_at = "retrying", handling.received_at
    handling.save()
    page = text(operator, f"/messages/{message.message_id}/")
    assert "goes on with it by itself" in page and "A redispatch would not hasten it" in page
    assert "it ignores the copy" in text(operator, f"/messages/{message.message_id}/?dialog=redispatch")


def test_what_waits_at_a_consumer_leads_to_what_it_waits_for(operator):
    first, second = situations.dispatched(key="k"), situations.dispatched(key="k")
    situations.received(first, "dead")
    situations.received(second, "waiting")
    page = text(operator, f"/messages/{second.message_id}/")
    assert "at consumer reports it waits for an earlier message of its key" in page
    assert f'<a href="/messages/{first.message_id}/">Open it' in page


def test_an_open_list_follows_what_becomes_of_a_message_at_its_consumer(operator):
    message = situations.dispatched()

    def seen() -> str:
        found = re.search(r'data-seen="([^"]*)"', text(operator, "/messages/"))
        assert found
        return f"{message.pk}~{found[1]}"

    before = seen()
    handling = situations.received(message, "retrying")
    htmx = {"HX-Request": "true"}
    assert "reports: retrying" in text(operator, f"/messages/?rows={before}", **htmx)
    then = seen()
    assert f"message-{message.pk}" not in text(operator, f"/messages/?rows={then}", **htmx)
    handling.delete()
    assert f"message-{message.pk}" in text(operator, f"/messages/?rows={then}", **htmx)


def test_the_list_as_json_says_what_a_consumer_gave_up(operator):
    situations.received(situations.dispatched(), "dead", error="no stock")
    (item,) = operator.get("/messages/", headers={"Accept": "application/json"}).json()["items"]
    assert item["why"] == "Dispatched, but consumer reports gave up after 3 tries: no stock"


def test_a_dead_key_holds_back_only_what_comes_after_it_and_is_due(operator):
    early = situations.pending(key="k")
    situations.dead(key="k")
    situations.pending(key="k", delay=3600)
    assert Pending.objects.filter(pk=early.pk).exists()
    assert "holds back" not in text(operator, "/")
    situations.aside("k")
    assert "holds back 1 key" in text(operator, "/")


def test_live_workers_come_first_and_silent_ones_are_folded_without_their_old_figures(operator):
    for n in range(6):
        situations.worker(name=f"gone-{n}", silent=300, rate=7.7, partitions=33)
    situations.worker(name="zoe", rate=5, partitions=64)
    page = text(operator, "/workers/")
    living, silent = page.split('<details id="silent"')
    assert 'data-worker="zoe"' in living and "64/64" in living and "gone-" not in living
    assert silent.count('data-worker="gone-') == 6 and "6 silent" in silent
    assert "33/64" not in page and "7.7/s" not in page
    overview = text(operator, "/")
    assert (
        "6 silent" in overview
        and "33/64" not in overview
        and overview.index("zoe") < overview.index("6 silent")
    )
