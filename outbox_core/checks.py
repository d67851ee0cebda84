"""System checks: wrong settings are named at the start, with the nearest known key."""

from __future__ import annotations

import difflib
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from outbox_core.conf import SETTINGS, Setting, settings


@register("outbox")
def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Every key of `OUTBOX` is known and of the right type; what must be set is set."""
    given = getattr(django_settings, "OUTBOX", {})
    found: list[CheckMessage] = []
    for key, value in given.items():
        if key not in SETTINGS:
            near = difflib.get_close_matches(str(key).upper(), SETTINGS, 1)
            hint = f'Did you mean "{near[0]}"?' if near else f"Known: {', '.join(SETTINGS)}."
            found.append(Error(f'OUTBOX["{key}"] is not a setting.', hint=hint, id="outbox.E001"))
        elif problem := _problem(value, SETTINGS[key]):
            found.append(Error(f'OUTBOX["{key}"] {problem}.', id="outbox.E002"))
    if not found:
        found.extend(_together())
    return found


def _problem(value: Any, setting: Setting) -> str:
    kinds = setting.kind if isinstance(setting.kind, tuple) else (setting.kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return f"must be {' or '.join(k.__name__ for k in kinds)}, not {type(value).__name__}"
    if setting.choices and value not in setting.choices:
        return f"must be one of {', '.join(map(repr, setting.choices))}, not {value!r}"
    if setting.least is not None and isinstance(value, int | float) and value < setting.least:
        return f"must be at least {setting.least:g}, not {value!r}"
    return ""


def _together() -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if not settings.AUDIT_KEY and not django_settings.DEBUG:
        found.append(Error('OUTBOX["AUDIT_KEY"] must be set unless DEBUG.', id="outbox.E003"))
    if settings.transport == "rabbitmq" and not settings.AMQP_URL:
        found.append(Error('OUTBOX["AMQP_URL"] must be set for RabbitMQ.', id="outbox.E004"))
    if settings.HEARTBEAT * 2 > settings.LEASE:
        found.append(Error('OUTBOX["HEARTBEAT"] must be at most half of LEASE.', id="outbox.E005"))
    for alias in settings.DATABASES:
        if alias not in django_settings.DATABASES:
            text = f'OUTBOX["DATABASES"] names "{alias}", which is not in DATABASES.'
            found.append(Error(text, id="outbox.E006"))
    return found


@register("outbox")
def check_sqlite(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """A deferred SQLite transaction that reads first cannot wait for the write lock: it fails at once."""
    found: list[CheckMessage] = []
    for alias in settings.DATABASES:
        config = django_settings.DATABASES.get(alias, {})
        mode = config.get("OPTIONS", {}).get("transaction_mode", "")
        if config.get("ENGINE", "").endswith("sqlite3") and mode.upper() not in ("IMMEDIATE", "EXCLUSIVE"):
            found.append(
                Warning(
                    f'Database "{alias}" is SQLite without OPTIONS["transaction_mode"] = "IMMEDIATE".',
                    hint='Several processes will meet "database is locked".',
                    id="outbox.W003",
                )
            )
    return found


@register(Tags.database)
def check_guards(app_configs: Any, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """The triggers that guard facts are there (SQLite drops them when a table is rebuilt)."""
    from django.db import connections

    from outbox_core.provision import unguarded

    found: list[CheckMessage] = []
    for alias in databases or ():
        if alias in settings.DATABASES:
            tables = connections[alias].introspection.table_names()
            if "outbox_core_operation" in tables and (missing := unguarded(alias)):
                found.append(
                    Warning(
                        f'Facts on database "{alias}" are not guarded: {", ".join(missing)}.',
                        hint="Run migrate: it makes the triggers again.",
                        id="outbox.W001",
                    )
                )
    return found
