"""Closed by default: what each kind of visitor gets from each address."""

from __future__ import annotations

import json

import pytest
from django.test import Client
from django.urls import get_resolver

from outbox_core.models import Operation
from tests.browser.visits import person
from tests.integration import situations

pytestmark = pytest.mark.django_db

PAGES = ("/", "/messages/", "/duplicates/", "/workers/", "/demo/")
PLURALS = ("retries", "redispatches", "marks", "discards")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)


@pytest.fixture
def visit():
    def enter(name: str, **options) -> Client:
        client = Client(**options)
        client.force_login(person(name))
        return client

    return enter


def addresses():
    """Every address of the dashboard and the demo, with ids filled in."""
    message = situations.dead()
    found = [*PAGES, "/audit/", f"/messages/{message.message_id}/"]
    found += [f"/messages/{message.message_id}/{plural}/" for plural in PLURALS]
    demo = next(p for p in get_resolver().url_patterns if str(p.pattern) == "demo/")
    return found + [f"/demo/{p.pattern}" for p in demo.url_patterns if str(p.pattern)]


def test_an_anonymous_visitor_gets_nothing_but_the_login_and_the_probes(client):
    for address in addresses():
        for method in (client.get, client.post):
            answer = method(address)
            assert answer.status_code == 302, address
            assert answer["Location"].startswith("/accounts/login/?next="), address
            answer = method(address, headers={"Accept": "application/json"})
            assert answer.status_code == 401, address
            assert answer.json()["error"]
            assert method(address, headers={"HX-Request": "true"}).status_code == 401
    assert client.get("/accounts/login/").status_code == 200
    assert client.get("/-/live").content == b"ok\n"
    assert client.get("/-/ready").content == b"ok\n"
    assert not Operation.objects.exists()


def test_an_anonymous_visitor_does_not_learn_which_addresses_exist(client):
    assert client.get("/no/such/page/").status_code == 302
    assert client.get("/no/such/page/", headers={"Accept": "application/json"}).status_code == 401


def test_a_user_without_permission_is_told_which_one_is_missing(visit):
    stranger = visit("stranger")
    for address in PAGES:
        answer = stranger.get(address)
        assert answer.status_code == 403, address
        assert "outbox_core.view_message" in answer.content.decode()
        answer = stranger.get(address, headers={"Accept": "application/json"})
        assert answer.status_code == 403
        assert answer.json()["permission"] == "outbox_core.view_message"


def test_a_viewer_sees_every_page_and_no_act(visit):
    viewer = visit("viewer")
    message = situations.dead()
    for address in (
        *PAGES,
        f"/messages/{message.message_id}/",
        f"/messages/{message.message_id}/?dialog=retry",
    ):
        page = viewer.get(address)
        assert page.status_code == 200, address
        text = page.content.decode()
        assert "data-verb" not in text
        assert 'id="operation"' not in text
    for plural in PLURALS:
        answer = viewer.post(f"/messages/{message.message_id}/{plural}/", {"reason": "r"})
        assert answer.status_code == 403
        assert "outbox_core.operate_message" in answer.content.decode()
    assert viewer.post("/demo/unroutable/").status_code == 403
    assert not Operation.objects.exists()


def test_the_audit_needs_its_own_permission_and_is_not_offered_without_it(visit):
    viewer, auditor = visit("viewer"), visit("auditor")
    refused = viewer.get("/audit/")
    assert refused.status_code == 403
    assert "outbox_core.view_operation" in refused.content.decode()
    assert 'href="/audit/"' not in viewer.get("/").content.decode()
    assert auditor.get("/audit/").status_code == 200
    assert 'href="/audit/"' in auditor.get("/").content.decode()


def test_an_inactive_user_gets_nothing(visit):
    client = visit("operator")
    user = person("operator")
    user.is_active = False
    user.save()
    assert client.get("/").status_code == 302


def test_acts_need_a_token_and_are_never_done_by_a_get(visit):
    careful = visit("operator", enforce_csrf_checks=True)
    message = situations.dead()
    for plural in PLURALS:
        address = f"/messages/{message.message_id}/{plural}/"
        assert careful.get(address).status_code == 405
        answer = careful.post(address, {"reason": "r"})
        assert answer.status_code == 403
        assert "Nothing was changed" in answer.content.decode()
        as_json = careful.post(
            address, json.dumps({"reason": "r"}), "application/json", headers={"Accept": "application/json"}
        )
        assert as_json.status_code == 403
        assert "Nothing was changed" in as_json.json()["detail"]
    assert not Operation.objects.exists()
    careful.get(f"/messages/{message.message_id}/?dialog=mark")
    token = careful.cookies["csrftoken"].value
    answer = careful.post(
        f"/messages/{message.message_id}/marks/",
        {"reason": "r"},
        headers={"X-CSRFToken": token, "HX-Request": "true"},
    )
    assert answer.status_code == 200
    assert Operation.objects.count() == 1


@pytest.mark.parametrize(
    "address",
    ["/", "/messages/", "/accounts/login/", "/-/live", "/-/ready", "/metrics", "/messages", "/nope/"],
)
def test_every_answer_has_the_headers(visit, client, address):
    for visitor in (client, visit("operator")):
        answer = visitor.get(address)
        assert answer["Content-Security-Policy"] == POLICY
        assert answer["Cache-Control"] == "no-store"
        assert {"Accept", "HX-Request", "Cookie"} <= {v.strip() for v in answer["Vary"].split(",")}
        assert answer["X-Content-Type-Options"] == "nosniff"


def test_metrics_need_the_token(client, settings):
    assert client.get("/metrics").status_code == 404
    settings.METRICS_TOKEN = "secret"
    assert client.get("/metrics").status_code == 404
    assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 404
    situations.dead()
    situations.received(situations.dispatched(), "undecodable")
    answer = client.get("/metrics", headers={"Authorization": "Bearer secret"})
    assert answer.status_code == 200
    assert 'outbox_messages{state="dead"} 1' in answer.content.decode()
    assert 'outbox_consumer_messages{state="dead"} 1' in answer.content.decode()


def test_no_page_has_inline_script_or_style(visit):
    import re

    operator = visit("operator")
    message = situations.dead()
    for address in (*PAGES, "/audit/", f"/messages/{message.message_id}/?dialog=retry", "/accounts/login/"):
        text = operator.get(address).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), address
        assert not re.search(r"<style|\sstyle=|\son\w+=", text), address
        assert "https://" not in text, address
