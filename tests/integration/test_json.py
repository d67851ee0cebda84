"""JSON: the same addresses, the same views, the forms of the contract."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal

import pytest
from django.test import Client

from outbox_core.models import Operation
from outbox_core.operations import inspect, verbs
from tests.browser.visits import person
from tests.integration import situations
from tests.integration.situations import ANA

pytestmark = pytest.mark.django_db

ACCEPT = {"Accept": "application/json"}
FIELDS = {
    "message_id", "type", "key", "state", "destination", "attempts", "failures", "created_at", "age_seconds", "why",
    "last_error", "version",
}  # fmt: skip


@pytest.fixture
def operator():
    client = Client()
    client.force_login(person("operator"))
    return client


def get(client: Client, address: str, status: int = 200):
    answer = client.get(address, headers=ACCEPT)
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/json"
    return answer.json()


def post(client: Client, message_id, plural: str, **body):
    return client.post(
        f"/messages/{message_id}/{plural}/", json.dumps(body), content_type="application/json", headers=ACCEPT
    )


def test_a_list_has_items_cursors_and_counts(operator):
    for n in range(51):
        situations.dispatched(key=f"k-{n}")
    situations.dead()
    answer = get(operator, "/messages/?state=dispatched")
    assert set(answer) >= {"items", "next", "previous", "counts"}
    assert len(answer["items"]) == 50
    assert set(answer["items"][0]) >= FIELDS
    assert answer["previous"] is None
    assert answer["counts"]["dead"] == 1
    older = get(operator, answer["next"])
    assert [item["key"] for item in older["items"]] == ["k-0"]
    assert older["next"] is None
    assert [i["key"] for i in get(operator, older["previous"])["items"]] == [
        i["key"] for i in answer["items"]
    ]


@pytest.mark.parametrize("address", ["/duplicates/", "/workers/", "/audit/"])
def test_the_other_lists_have_the_same_form(operator, address):
    assert set(get(operator, address)) >= {"items", "next", "previous", "counts"}


def test_the_overview_and_the_demo_answer_json_too(operator):
    situations.dead()
    overview = get(operator, "/")
    assert overview["verdict"]["level"] == "bad"
    assert overview["numbers"]["dead"] == 1
    assert "products" in get(operator, "/demo/")


def test_a_message_has_its_timeline_consumers_and_exact_payload(operator):
    message = situations.dispatched()
    loud = situations.pending(
        payload={"n": 2**60 + 1, "price": Decimal("12.50"), "email": "a@b.example"}, headers={"h": 1}
    )
    answer = get(operator, f"/messages/{message.message_id}/")
    assert set(answer) >= FIELDS | {"payload", "headers", "timeline", "consumers", "causes", "effects"}
    assert [e["kind"] for e in answer["timeline"]] == ["confirmed", "committed"]
    assert set(answer["timeline"][0]) == {"at", "kind", "text", "worker", "attempt", "detail"}
    raw = operator.get(f"/messages/{loud.message_id}/", headers=ACCEPT).content.decode()
    assert f'"n":{2**60 + 1}' in raw
    assert '"price":12.50' in raw
    assert "a@b.example" not in raw
    assert '"h":1' in raw


def test_a_bad_filter_is_422_and_names_it(operator):
    assert "state" in get(operator, "/messages/?state=lost", 422)["error"]


def test_an_act_answers_with_operation_outcome_state_by_and_at(operator):
    message = situations.dead()
    version = inspect.standing(message).version
    answer = post(operator, message.message_id, "retries", reason="bound again", version=version)
    assert answer.status_code == 200
    operation = Operation.objects.get()
    assert answer.json() == {
        "operation": operation.pk, "outcome": "done", "state": "pending", "by": "operator", "at": answer.json()["at"],
    }  # fmt: skip
    again = post(operator, message.message_id, "retries", reason="once more")
    assert again.status_code == 200
    assert again.json()["outcome"] == "unchanged"
    assert Operation.objects.count() == 1


def test_a_refused_act_is_409_and_says_who_and_when(operator):
    message = situations.dead()
    version = inspect.standing(message).version
    verbs.act("discard", message.message_id, actor=ANA, reason="not needed")
    answer = post(operator, message.message_id, "retries", reason="r", version=version)
    assert answer.status_code == 409
    body = answer.json()
    assert (body["outcome"], body["state"], body["by"], body["operation"]) == (
        "refused",
        "discarded",
        "ana",
        None,
    )
    assert body["at"]
    assert Operation.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "reason"),
        ({"reason": " "}, "reason"),
        ({"reason": "x" * 501}, "reason"),
        ({"reason": 7}, "reason"),
        ({"reason": "r", "version": 1}, "version"),
    ],
)
def test_bad_input_is_422_and_names_the_field(operator, body, field):
    message = situations.dead()
    answer = post(operator, message.message_id, "marks", **body)
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert not Operation.objects.exists()


@pytest.mark.parametrize("body", ["", "[]", "{", '"x"', "[" * 100_000])
def test_a_body_that_is_no_object_is_422(operator, body):
    message = situations.dead()
    answer = operator.post(f"/messages/{message.message_id}/marks/", body, "application/json", headers=ACCEPT)
    assert answer.status_code == 422


def test_what_does_not_exist_is_404_and_a_get_of_an_act_405(operator):
    assert post(operator, uuid.uuid4(), "marks", reason="r").status_code == 404
    assert get(operator, f"/messages/{uuid.uuid4()}/", 404)["error"] == "No such message"
    message = situations.dead()
    for plural in ("retries", "redispatches", "marks", "discards"):
        assert operator.get(f"/messages/{message.message_id}/{plural}/", headers=ACCEPT).status_code == 405


def test_a_form_is_answered_with_303_and_htmx_with_a_fragment(operator):
    first, second = situations.dead(), situations.dead()
    answer = operator.post(f"/messages/{first.message_id}/marks/", {"reason": "r", "version": "dead.0.0"})
    assert answer.status_code == 303
    assert answer["Location"] == f"/messages/{first.message_id}/"
    fragment = operator.post(
        f"/messages/{second.message_id}/marks/",
        {"reason": "r", "version": "dead.0.0"},
        headers={"HX-Request": "true"},
    )
    assert fragment.status_code == 200
    assert b"<html" not in fragment.content
    stale = operator.post(
        f"/messages/{second.message_id}/marks/",
        {"reason": "r", "version": "dead.0.0"},
        headers={"HX-Request": "true"},
    )
    assert stale.status_code == 409
    assert b"operator" in stale.content
    plain = operator.post(f"/messages/{second.message_id}/marks/", {"reason": "r", "version": "dead.0.0"})
    assert plain.status_code == 409
    assert b"<html" in plain.content
    assert Operation.objects.count() == 2
