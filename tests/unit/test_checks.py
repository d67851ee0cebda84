"""System checks: a wrong setting is named, with what was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from outbox_core.checks import check_settings, check_sqlite

Change = Callable[..., None]


def found(**changes: Any) -> list[tuple[str, str]]:
    with override_settings(OUTBOX={**settings.OUTBOX, **changes}):
        return [(str(c.id), f"{c.msg} {c.hint or ''}") for c in check_settings(None)]


def test_the_tests_own_settings_are_well() -> None:
    assert found() == []


def test_an_unknown_key_is_an_error_with_the_nearest_known_one() -> None:
    ((id_, text),) = found(BATCHSIZE=5)
    assert id_ == "outbox.E001"
    assert '"BATCH_SIZE"' in text


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("BATCH_SIZE", "500", "must be int, not str"),
        ("BATCH_SIZE", True, "must be int, not bool"),
        ("BATCH_SIZE", 0, "at least 1"),
        ("ON_DEAD", "wait", "one of 'block', 'skip'"),
        ("LEASE", None, "must be int or float"),
        ("MASK", "email", "must be list or tuple"),
    ],
)
def test_a_wrong_value_names_its_key_and_the_rule(key: str, value: object, says: str) -> None:
    ((id_, text),) = found(**{key: value})
    assert id_ == "outbox.E002"
    assert key in text
    assert says in text


def test_settings_that_do_not_fit_together_are_told() -> None:
    assert [id_ for id_, _ in found(LEASE=3, HEARTBEAT=2)] == ["outbox.E005"]
    assert [id_ for id_, _ in found(DATABASES=["default", "elsewhere"])] == ["outbox.E006"]
    assert [id_ for id_, _ in found(AUDIT_KEY="")] == ["outbox.E003"]
    assert [id_ for id_, _ in found(TRANSPORT="rabbitmq", AMQP_URL="")] == ["outbox.E004"]


def test_a_sqlite_database_with_deferred_transactions_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": "x"}
    monkeypatch.setitem(settings.DATABASES, "default", sqlite)
    assert [str(c.id) for c in check_sqlite(None)] == ["outbox.W003"]
    sqlite["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
    assert check_sqlite(None) == []
