"""The dedupe window: what is known of a receipt, the question before a second effect, the window that gaps ask for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from outbox_core.clock import database_now
from outbox_core.errors import EffectMayRepeat
from outbox_core.models import Duplicate, Message, Operation, Parked, Receipt
from outbox_core.operations import dedupe, retention
from outbox_core.operations.inspect import consumers, standing
from outbox_core.operations.retention import prune
from outbox_core.operations.verbs import act
from tests.browser.visits import person
from tests.integration.situations import ANA, confirm, dead, dispatched, pending, received

pytestmark = pytest.mark.django_db(transaction=True)

TYPE = "orders.started"  # the demo's consumer "payments" takes it


@pytest.fixture
def over(outbox_settings: Callable[..., None]) -> None:
    """Whatever was sent is past its dedupe window at once."""
    outbox_settings(DEDUPE_WINDOW=0, RETENTION={"receipts": 0, "dispatched": 30, "failures": 30})


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(person("operator"))
    return client


def old(type: str = TYPE) -> Message:
    """Sent, and by now past a window of nothing (SQLite's clock counts whole milliseconds)."""
    message = dispatched(type=type)
    time.sleep(0.002)
    return message


def receipt(message: Message, consumer: str = "payments", outcome: str = "processed") -> Receipt:
    return Receipt.objects.create(
        consumer=consumer, message_id=str(message.message_id), received_at=database_now(), outcome=outcome,
        digest=message.digest,
    )  # fmt: skip


def states(message: Message) -> dict[str, str]:
    return {c.consumer: c.state for c in consumers(message)}


def again(message: Message, **arguments: Any) -> Any:
    return act("redispatch", message.message_id, actor=ANA, reason="r", **arguments)


def test_inside_the_window_no_receipt_means_that_it_was_not_seen() -> None:
    message = dispatched(type=TYPE)
    assert states(message)["payments"] == "not seen"
    assert again(message).state == "pending"


def test_past_the_window_it_means_nothing_and_a_second_send_is_asked_about(over: None) -> None:
    message = old()
    assert states(message)["payments"] == "forgotten"
    before = standing(message).version
    with pytest.raises(EffectMayRepeat) as refusal:
        again(message)
    assert "payments" in refusal.value.consumers and str(message.message_id) in str(refusal.value)
    assert standing(message).version == before and not Operation.objects.exists()
    assert again(message, again=True).state == "pending"
    assert "payments" in Operation.objects.get().after["may_repeat"]


def test_a_receipt_that_still_stands_needs_no_question(over: None) -> None:
    message = old()
    for name in states(message):
        receipt(message, name)
    assert set(states(message).values()) == {"processed"}
    assert again(message).state == "pending" and "may_repeat" not in Operation.objects.get().after


def test_consumers_of_other_installations_are_asked_about_too(over: None) -> None:
    message = old("nobody.knows.it")
    with pytest.raises(EffectMayRepeat, match="other installations"):
        again(message)


def test_what_a_consumer_has_and_has_not_done_needs_no_question(over: None) -> None:
    message = old()
    for name in states(message):
        received(message, "dead", consumer=name)
    assert again(message).state == "pending"


@pytest.mark.parametrize("verb", ["mark", "discard"])
def test_the_window_counts_from_the_act_that_ended_it(verb: str, over: None) -> None:
    message = pending(type=TYPE)
    act(verb, message.message_id, actor=ANA, reason="r")
    time.sleep(0.002)
    with pytest.raises(EffectMayRepeat):
        again(message)


def test_a_dead_one_is_never_past_it(over: None) -> None:
    message = dead(type=TYPE)
    assert states(message)["payments"] == "not seen"
    assert act("retry", message.message_id, actor=ANA, reason="r").state == "pending"


def test_a_receipt_outlives_the_window_while_its_message_may_come_again(
    monkeypatch: pytest.MonkeyPatch, outbox_settings: Callable[..., None]
) -> None:
    outbox_settings(DEDUPE_WINDOW=7, RETENTION={"receipts": 7, "dispatched": 30, "failures": 90})
    gone, buried, sent_again, acted = dispatched(), dead(), dispatched(), dispatched()
    receipts = [receipt(m) for m in (gone, buried, sent_again, acted)]
    now = database_now()
    later = now + timedelta(days=8)
    monkeypatch.setattr(retention, "database_now", lambda using: later)
    # As if these had happened a day ago; the facts themselves can't be made older, nor younger.
    Parked.objects.create(
        message=acted, state="discarded", partition=1, key="", position=1, type="t", destination="", holds=False,
        attempts=1, failures=0, at=later - timedelta(days=1),
    )  # fmt: skip
    sent = confirm(sent_again, 9, 2)
    assert dedupe.protected([gone, buried, sent_again, acted], "default", sent.at) == {
        buried.pk, sent_again.pk, acted.pk,
    }  # fmt: skip
    assert prune().receipts == 2  # the first send of `sent_again` is as old as that of `gone`
    kept = set(Receipt.objects.values_list("pk", flat=True))
    assert kept == {receipts[1].pk, receipts[3].pk}


# Each way to act asks.


def test_the_command_leaves_it_alone_unless_told(over: None) -> None:
    message = old()
    out = StringIO()
    arguments = ["--id", str(message.message_id), "--reason", "r", "--json"]
    with pytest.raises(CommandError) as refusal:
        call_command("outbox_redispatch", *arguments, stdout=out)
    assert refusal.value.returncode == 4
    [item] = json.loads(out.getvalue())["items"]
    assert item["outcome"] == "refused" and "payments" in item["may_repeat"]
    call_command("outbox_redispatch", *arguments, "--again", stdout=StringIO())
    assert standing(message).state == "pending"


def test_the_dialog_and_its_post_ask(over: None, operator: Client) -> None:
    message = old()
    address = f"/messages/{message.message_id}/"
    page = operator.get(f"{address}?dialog=redispatch").text
    assert 'name="again" required' in page and "dedupe window" in page
    version = standing(message).version
    refusal = operator.post(f"{address}redispatches/", {"reason": "r", "version": version})
    assert (
        refusal.status_code == 422 and "payments" in refusal.text and standing(message).state == "dispatched"
    )
    accepted = operator.post(f"{address}redispatches/", {"reason": "r", "version": version, "again": "on"})
    assert accepted.status_code == 303 and standing(message).state == "pending"


def test_inside_the_window_the_dialog_has_no_such_box(operator: Client) -> None:
    message = dispatched(type=TYPE)
    assert 'name="again"' not in operator.get(f"/messages/{message.message_id}/?dialog=redispatch").text


def test_json_asks_by_the_name_of_the_field(over: None, operator: Client) -> None:
    message = old()

    def post(**body: Any) -> Any:
        return operator.post(
            f"/messages/{message.message_id}/redispatches/", json.dumps({"reason": "r", **body}),
            content_type="application/json", headers={"Accept": "application/json"},
        )  # fmt: skip

    assert (post().status_code, post().json()["field"]) == (422, "again")
    wrong = post(again="perhaps")
    assert (wrong.status_code, wrong.json()["field"]) == (422, "again")
    assert post(again=True).json()["state"] == "pending"


def test_the_admin_asks(over: None) -> None:
    message = old()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    url = "/admin/outbox_core/message/"
    chosen = {"action": "redispatch", "_selected_action": message.pk, "index": 0}
    asked = client.post(url, chosen)
    assert 'name="again"' in asked.text and "dedupe window" in asked.text
    form = chosen | {"chosen": f"{message.pk}:{standing(message).version}", "reason": "r", "apply": "1"}
    assert "dedupe window" in client.post(url, form, follow=True).text
    assert standing(message).state == "dispatched"
    client.post(url, form | {"again": "on"})
    assert standing(message).state == "pending"


# The window that the gaps seen ask for.


def copies(*hours: float, cause: str = "redelivered") -> None:
    Duplicate.objects.bulk_create(
        Duplicate(
            consumer="c",
            message_id=f"m{h}",
            cause=cause,
            gap=timedelta(hours=h),
            same_payload=True,
            digest="",
        )
        for h in hours
    )


def test_no_copies_suggest_nothing(operator: Client) -> None:
    copies(90, cause="operator")
    assert dedupe.gaps() is None
    assert 'id="window"' not in operator.get("/duplicates/").text


@pytest.mark.parametrize(
    ("longest", "suggested", "words"),
    [(0.25, timedelta(hours=1), "1 h would do"), (5, timedelta(hours=12), "12 h would do"),
     (80, timedelta(days=7), "7 d fits"), (120, timedelta(days=14), "choose 14 d"),
     (2000, timedelta(hours=4000), "choose 166 d 16 h")],
)  # fmt: skip
def test_the_longest_gap_suggests_a_window(
    longest: float, suggested: timedelta, words: str, operator: Client
) -> None:
    copies(*[0.01] * 199, longest)
    found = dedupe.gaps()
    assert found is not None
    assert (found.count, found.most, found.suggested) == (200, timedelta(hours=0.01), suggested)
    assert words in operator.get("/duplicates/").text
    told = operator.get("/duplicates/", headers={"Accept": "application/json"}).json()
    assert told["gaps"]["suggested_window"] == suggested.total_seconds()
    assert told["window_seconds"] == 7 * 86400
