"""The admin: read-only for everyone, fast on big tables, and the verbs through the same door as everywhere."""

from __future__ import annotations

import re
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from outbox_core.clock import database_now
from outbox_core.models import (
    Binding,
    Dispatch,
    Duplicate,
    FailedAttempt,
    Handling,
    LoopbackBinding,
    LoopbackDelivery,
    LoopbackQueue,
    Message,
    Newest,
    Operation,
    OperationItem,
    Parked,
    Partition,
    Pending,
    Receipt,
    Tally,
    Worker,
)  # fmt: skip
from outbox_core.operations.inspect import standing
from outbox_core.operations.verbs import act
from tests.integration.situations import ANA, dead, dispatched, own, pending, retrying

pytestmark = pytest.mark.django_db(transaction=True)
URL = "/admin/outbox_core"
MODELS = sorted(m._meta.model_name for m in apps.get_app_config("outbox_core").get_models())


def staff(*permissions: str, superuser: bool = False) -> Client:
    user = User.objects.create_user("ana", password="x", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator() -> Client:
    return staff("view_message", "operate_message", "view_operation")


def one_of_everything() -> None:
    message = dispatched(key="k")
    retrying(), dead(key="k2"), own()
    FailedAttempt.objects.create(
        message=message, worker="w", attempt=1, error_class="E", detail="d", kind="unknown"
    )
    id_, now = str(message.message_id), database_now()
    Receipt.objects.create(consumer="c", message_id=id_, received_at=now, outcome="processed", digest="d")
    Handling.objects.create(consumer="c", message_id=None, body=b"\xff", digest="d", state="undecodable")
    Newest.objects.create(consumer="c", source="s", key="k", position=1)
    Duplicate.objects.create(consumer="c", message_id=id_, cause="race", same_payload=False, digest="d")
    Binding.objects.create(queue="q", exchange="e", pattern="p")
    queue = LoopbackQueue.objects.create(name="q")
    LoopbackBinding.objects.create(queue=queue, exchange="e", pattern="#")
    LoopbackDelivery.objects.create(
        queue="q", exchange="e", routing_key="r", properties={}, headers={}, body=b"{}"
    )
    Worker.objects.create(kind="consumer", name="w", host="h", pid=1, version="1")
    Tally.objects.create(minute=now, worker="w", destination="e", kind="failed", count=1)
    done = act("redispatch", message.message_id, actor=ANA, reason="r")
    OperationItem.objects.create(operation=done.operation, message=message.pk, outcome="done")


def test_every_model_is_there_and_can_only_be_looked_at() -> None:
    one_of_everything()
    client = staff(superuser=True)
    registered = {m._meta.model_name for m in admin.site._registry if m._meta.app_label == "outbox_core"}
    assert registered == set(MODELS)
    for name in MODELS:
        model: Any = apps.get_model("outbox_core", name)
        row = model.objects.order_by("-pk").first()
        assert row is not None, f"no row of {name}"
        assert client.get(f"{URL}/{name}/").status_code == 200, name
        page = client.get(f"{URL}/{name}/{row.pk}/change/")
        assert page.status_code == 200 and b'name="_save"' not in page.content, name
        for answer in (
            client.get(f"{URL}/{name}/add/"), client.post(f"{URL}/{name}/{row.pk}/change/", {"type": "x"}),
            client.post(f"{URL}/{name}/{row.pk}/delete/", {"post": "yes"}),
        ):  # fmt: skip
            assert answer.status_code == 403, name
        assert model.objects.filter(pk=row.pk).exists()


def test_a_list_needs_few_queries_and_counts_no_table() -> None:
    for _ in range(30):
        dispatched(), retrying(), dead()
    client = staff(superuser=True)
    for name in MODELS:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"{URL}/{name}/?_facets=True").status_code == 200
        assert len(queries) <= 20, (name, [q["sql"][:100] for q in queries])
        for query in queries:
            if "COUNT(" in query["sql"] and "outbox_core" in query["sql"]:
                assert "LIMIT" in query["sql"], query["sql"]


def test_filters_and_search_find_what_they_say() -> None:
    client = staff("view_message", "view_operation")
    found, other = dead(key="order-7"), retrying(type="invoice.sent")
    act("discard", pending().message_id, actor=ANA, reason="r")

    def rows(path: str) -> list[str]:
        answer = client.get(f"{URL}/{path}")
        assert answer.status_code == 200, path
        return [str(r.pk) for r in answer.context["cl"].result_list]

    assert rows("message/?state=dead") == [str(found.pk)] == rows(f"message/?q={found.message_id}")
    assert rows("message/?q=order-7") == [str(found.pk)] and rows("message/?q=invoice.sent") == [
        str(other.pk)
    ]
    assert rows("message/?state=retrying") == [str(other.pk)] and len(rows("message/?committed=600")) == 3
    assert rows("message/?q=nothing") == [] and rows("parked/?state=dead") == [str(found.pk)]
    assert len(rows("operation/?verb=discard&actor=ana&outcome=done")) == 1
    assert rows("operation/?verb=retry") == []
    assert rows(f"failedattempt/?message={found.pk}") == [] and rows(f"receipt/?q={found.message_id}") == []


def test_states_are_shown_without_a_query_for_each_row(operator: Client) -> None:
    for make in (pending, retrying, dead, dispatched):
        make()
    with CaptureQueriesContext(connection) as few:
        page = operator.get(f"{URL}/message/")
    for state in ("pending", "retrying", "dead", "dispatched"):
        assert f'<td class="field-state">{state}</td>' in page.text
    for _ in range(20):
        retrying()
    with CaptureQueriesContext(connection) as many:
        operator.get(f"{URL}/message/")
    assert len(many) == len(few)


def ask(client: Client, verb: str, messages: list[Message], model: str = "message", **extra: Any) -> Any:
    return client.post(
        f"{URL}/{model}/", {"action": verb, "_selected_action": [m.pk for m in messages], "index": 0, **extra}
    )  # fmt: skip


def confirm(client: Client, asked: Any, reason: str = "queue bound", model: str = "message") -> Any:
    """Submit the page that asks for the reason."""
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asked.text))
    return client.post(f"{URL}/{model}/", {**hidden, "reason": reason, "apply": "yes"}, follow=True)


@pytest.mark.parametrize(
    ("verb", "make", "state"),
    [("retry", dead, "pending"), ("redispatch", dispatched, "pending"), ("mark", retrying, "marked"),
     ("discard", pending, "discarded")],
)  # fmt: skip
def test_each_verb_has_one_effect_and_one_audit_row(
    operator: Client, verb: str, make: Any, state: str
) -> None:
    message = make()
    asked = ask(operator, verb, [message])
    assert str(message.message_id) in asked.text and standing(message).state != state
    assert not Operation.objects.exists()
    done = confirm(operator, asked)
    assert standing(message).state == state and "1 message" in done.text
    row = Operation.objects.get()
    assert (row.verb, row.actor, row.origin, row.reason) == (verb, "ana", "admin", "queue bound")
    assert row.message_id == str(message.message_id) and row.remote == "127.0.0.1"


def test_a_second_click_and_a_stale_page_are_refused_with_who_and_when(operator: Client) -> None:
    message = dead()
    asked, colleague = ask(operator, "retry", [message]), ask(operator, "discard", [message])
    confirm(operator, asked)
    for late in (confirm(operator, asked), confirm(operator, colleague)):
        assert "1 message refused" in late.text and "it is pending now, changed by ana at" in late.text
    assert Operation.objects.count() == 1 and standing(message).state == "pending"


def test_a_message_in_flight_is_refused_with_the_dispatcher(operator: Client) -> None:
    message, good = retrying(), retrying()
    own("dispatcher-b", in_flight=[message])
    told = confirm(operator, ask(operator, "discard", [message, good]))
    assert "1 message discarded" in told.text and "is being sent by dispatcher-b since" in told.text
    assert list(Parked.objects.values_list("pk", flat=True)) == [good.pk]


def test_without_a_reason_it_asks_again_and_does_nothing(operator: Client) -> None:
    message = dead()
    asked = ask(operator, "retry", [message])
    again = confirm(operator, asked, reason="   ")
    assert "This field is required" in again.text and standing(message).state == "dead"
    confirm(operator, again)
    assert standing(message).state == "pending"


def test_a_state_that_the_verb_is_not_for_is_announced_and_refused(operator: Client) -> None:
    message = dispatched()
    asked = ask(operator, "retry", [message])
    assert "will be refused" in asked.text
    assert "1 message refused" in confirm(operator, asked).text and not Operation.objects.exists()


def test_select_all_acts_on_all_that_match(operator: Client) -> None:
    for _ in range(120):
        dead()
    spared = retrying()
    page = operator.get(f"{URL}/parked/?state=dead")
    assert len(page.context["cl"].result_list) == 50
    asked = operator.post(
        f"{URL}/parked/?state=dead",
        {"action": "retry", "_selected_action": [Parked.objects.first().pk], "select_across": 1, "index": 0},
    )  # fmt: skip
    told = confirm(operator, asked, model="parked")
    assert "120 messages retried" in told.text and Pending.objects.filter(failures=0).count() == 120
    assert Operation.objects.count() == 120 and standing(spared).state == "retrying"


def test_who_may_only_view_sees_no_act_and_gets_none() -> None:
    message = dead()
    viewer = staff("view_message")
    assert 'name="action"' not in viewer.get(f"{URL}/message/").text
    ask(viewer, "retry", [message])
    viewer.post(f"{URL}/message/", {
        "action": "retry", "_selected_action": message.pk, "reason": "r", "apply": "1",
        "chosen": f"{message.pk}:{standing(message).version}",
    })  # fmt: skip
    assert standing(message).state == "dead" and not Operation.objects.exists()
    assert viewer.get(f"{URL}/operation/").status_code == 403


def test_staff_without_permission_and_strangers_see_nothing() -> None:
    message = dead()
    nobody = staff()
    for name in MODELS:
        assert nobody.get(f"{URL}/{name}/").status_code == 403, name
    assert nobody.get(f"{URL}/message/{message.pk}/change/").status_code == 403
    assert Client().get(f"{URL}/message/").status_code == 302


def test_the_groups_open_what_they_should() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)  # groups are made after each migrate; a test's flush empties them
    client = staff()
    User.objects.get(username="ana").groups.add(Group.objects.get(name="Outboard auditors"))
    assert client.get(f"{URL}/operation/").status_code == 200
    assert client.get(f"{URL}/message/").status_code == 200


def test_times_are_those_of_the_site_on_both_sides_of_midnight_and_of_a_clock_change(
    operator: Client,
) -> None:
    zone = "America/Sao_Paulo"
    message = dispatched()
    with override_settings(TIME_ZONE=zone):
        page = operator.get(f"{URL}/message/{message.pk}/change/").text
        local = message.created_at.astimezone(ZoneInfo(zone))
        assert f"{local:%Y-%m-%d %H:%M:%S}" in page
        assert "date_hierarchy" not in operator.get(f"{URL}/message/").text
    for model in admin.site._registry.values():
        assert model.date_hierarchy is None or model.model._meta.app_label != "outbox_core"


def test_a_tampered_selection_is_refused(operator: Client) -> None:
    message = dead()
    told = operator.post(
        f"{URL}/message/",
        {"action": "retry", "_selected_action": message.pk, "reason": "r", "apply": "1", "chosen": "7;drop"},
        follow=True,
    )  # fmt: skip
    assert "could not be read" in told.text and standing(message).state == "dead"


def test_a_payload_is_valid_json_readable_exact_escaped_and_masked() -> None:
    payload = {
        "ok": True, "n": None, "name": "Zoë 😀", "big": 9007199254740993, "email": "a@b.c",
        "user": {"password": "hunter2"}, "html": "<img src=x onerror=alert(1)>{{7*7}}",
    }  # fmt: skip
    message = pending(payload=payload, key="<script>alert(1)</script>")
    page = staff("view_message").get(f"{URL}/message/{message.pk}/change/").text
    for text in ("&quot;ok&quot;: true", "&quot;n&quot;: null", "Zoë 😀", "9007199254740993", "{{7*7}}"):
        assert text in page
    assert "hunter2" not in page and "a@b.c" not in page and "&quot;masked&quot;" in page
    assert "<img src=x" not in page and "<script>alert(1)" not in page
    assert not Operation.objects.exists()


def test_who_may_reveal_sees_what_is_masked_and_that_is_audited() -> None:
    message = pending(payload={"email": "a@b.c"})
    client = staff("view_message", "reveal_payload")
    assert "a@b.c" in client.get(f"{URL}/message/{message.pk}/change/").text
    row = Operation.objects.get()
    assert (row.verb, row.actor, row.message_id) == ("reveal", "ana", str(message.message_id))
    client.get(f"{URL}/message/{pending(payload={'n': 1}).pk}/change/")
    assert Operation.objects.count() == 1


def test_a_message_page_links_to_what_hangs_on_it(operator: Client) -> None:
    message = dispatched()
    act("redispatch", message.message_id, actor=ANA, reason="once more")
    page = operator.get(f"{URL}/message/{message.pk}/change/")
    links = re.findall(r'href="(/admin/outbox_core/[^"]*\?[^"]*)"', page.text)
    assert len(links) == 8 and "ana redispatched it: once more" in page.text
    for url in links:
        assert operator.get(url.replace("&amp;", "&")).status_code == 200, url
    assert operator.get(f"{URL}/message/999999/change/").status_code == 302
    assert Dispatch.objects.count() == 1 and Partition.objects.count() == 64


def test_pages_carry_no_inline_script_or_style(operator: Client) -> None:
    message = dead()
    pages = [
        operator.get(f"{URL}/message/"), operator.get(f"{URL}/message/{message.pk}/change/"),
        operator.get("/admin/"), ask(operator, "retry", [message]),
    ]  # fmt: skip
    for page in pages:
        assert not re.search(r"<script(?![^>]*(?:src=|application/json))|<style|\sstyle=|\son\w+=", page.text)
        assert "script-src 'self'" in page["Content-Security-Policy"]
