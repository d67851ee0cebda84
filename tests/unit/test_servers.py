"""Which servers a run of the tests uses, and what it says where there are none."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tests import servers, session, spawning
from tests.private_servers import PostgreSQL, RabbitMQ


@pytest.fixture
def bare(monkeypatch):
    """An environment that names no server, on a host where none answers and none is installed."""
    for name in ("PAIR", "TEST_DATABASE_URL", "TEST_AMQP_URL", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(servers, "database_answers", lambda url: False)
    monkeypatch.setattr(servers, "amqp_answers", lambda url: False)
    monkeypatch.setattr(PostgreSQL, "missing", classmethod(lambda cls: "and initdb is not installed"))
    monkeypatch.setattr(RabbitMQ, "missing", classmethod(lambda cls: "and rabbitmq-server is not installed"))
    return monkeypatch


def test_the_embedded_pair_is_the_default_and_needs_no_server(bare):
    assert servers.pair() == "embedded"
    found = servers.find("embedded")
    assert found.database_url.startswith("sqlite:///")
    assert (found.amqp_url, found.missing) == ("", "")


def test_another_pair_is_an_error(bare):
    bare.setenv("PAIR", "mysql")
    with pytest.raises(ValueError, match="PAIR must be embedded or real, not 'mysql'"):
        servers.pair()


def test_named_servers_come_first(bare):
    bare.setenv("TEST_DATABASE_URL", "postgres://u@db.example.org/x")
    bare.setenv("TEST_AMQP_URL", "amqp://u@rabbit.example.org/x")
    found = servers.find("real")
    assert found == servers.Found("postgres://u@db.example.org/x", "amqp://u@rabbit.example.org/x")


def test_servers_that_answer_come_second_and_are_told_to_the_workers_of_this_run(bare):
    bare.setattr(servers, "database_answers", lambda url: url == servers.USUAL_DATABASE)
    bare.setattr(servers, "amqp_answers", lambda url: url == servers.USUAL_AMQP)
    bare.setattr(os, "environ", dict(os.environ))
    assert servers.find("real") == servers.Found(servers.USUAL_DATABASE, servers.USUAL_AMQP)
    assert os.environ["TEST_DATABASE_URL"] == servers.USUAL_DATABASE
    assert os.environ["TEST_AMQP_URL"] == servers.USUAL_AMQP


def test_without_any_server_one_sentence_says_what_was_tried(bare):
    missing = servers.find("real").missing
    assert missing.startswith("No PostgreSQL: TEST_DATABASE_URL is not set, postgres://")
    assert missing.endswith("does not answer, and initdb is not installed.")
    bare.setenv("TEST_DATABASE_URL", "postgres://u@db.example.org/x")
    assert servers.find("real").missing.startswith("No RabbitMQ: TEST_AMQP_URL is not set, amqp://")


def test_a_missing_server_skips_every_test_but_fails_in_ci(bare, settings):
    settings.MISSING_SERVER = "No RabbitMQ: none."
    markers = []
    item = SimpleNamespace(add_marker=markers.append)
    session.without_server([item])
    assert markers[0].mark.kwargs == {"reason": "No RabbitMQ: none."}
    bare.setenv("CI", "true")
    with pytest.raises(pytest.exit.Exception, match=r"No RabbitMQ: none\.") as caught:
        session.without_server([item])
    assert caught.value.returncode == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "1"), (False, "0"), (2.5, "2.5"), (["a", "b"], "a,b"), ({"a": 1}, '{"a": 1}'), ("x", "x")],
)
def test_a_setting_is_written_as_the_environment_holds_it(value, text):
    assert spawning.text(value) == text


def test_a_database_url_quotes_what_needs_it(monkeypatch):
    config = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "a/b",
        "USER": "u@x",
        "PASSWORD": "p:/?",
        "HOST": "::1",
        "PORT": 5433,
    }
    monkeypatch.setattr(spawning, "connections", {"default": SimpleNamespace(settings_dict=config)})
    assert spawning.database_url() == "postgres://u%40x:p%3A%2F%3F@[::1]:5433/a%2Fb"
