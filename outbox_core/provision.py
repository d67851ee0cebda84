"""What a migration leaves behind in the database: partitions, groups, and the triggers that guard facts.

It runs after every `migrate`, since SQLite rebuilds a table when it alters one, and drops its triggers.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections, router, transaction

from outbox_core.models import PARTITIONS, Partition

GROUPS = {
    "Outboard viewers": ("view_message",),
    "Outboard operators": ("view_message", "operate_message"),
    "Outboard auditors": ("view_message", "view_operation"),
}

IMMUTABLE = ("message", "dispatch", "failedattempt", "duplicate")
"""Facts: no UPDATE. Retention may delete them."""

APPEND_ONLY = ("operation",)
"""The audit trail: neither UPDATE nor DELETE."""


REFUSE = """
CREATE OR REPLACE FUNCTION outbox_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$"""


def after_migrate(using: str = DEFAULT_DB_ALIAS, **kwargs: Any) -> None:
    """Make the partitions, triggers and groups that are missing. Idempotent; a later run repairs."""
    if not router.allow_migrate_model(using, Partition):
        return
    with transaction.atomic(using=using):
        Partition.objects.using(using).bulk_create(
            [Partition(number=n) for n in range(PARTITIONS)], ignore_conflicts=True
        )
        guard(using)
        _make_groups(using)


def guard(using: str) -> None:
    """Create the triggers that refuse to change facts."""
    connection = connections[using]
    with connection.cursor() as cursor:
        for name, action in _guards():
            for statement in _trigger(connection.vendor, name, action):
                cursor.execute(statement)


def unguarded(using: str) -> list[str]:
    """The guards that are missing, as `table: action`. For the system check."""
    connection = connections[using]
    query = (
        "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D'"
        if connection.vendor == "postgresql"
        else "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    )
    with connection.cursor() as cursor:
        cursor.execute(query)
        present = {row[0] for row in cursor.fetchall()}
    return [f"{n}: {a}" for n, a in _guards() if _trigger_name(n, a) not in present]


def unguard(using: str) -> None:
    """Lift the guards: for the test runner's flush only, which calls `guard` again afterwards."""
    connection = connections[using]
    with connection.cursor() as cursor:
        for name, action in _guards():
            table = f" ON outbox_core_{name}" if connection.vendor == "postgresql" else ""
            cursor.execute(f"DROP TRIGGER IF EXISTS {_trigger_name(name, action)}{table}")


def _guards() -> list[tuple[str, str]]:
    return [(name, "UPDATE") for name in (*IMMUTABLE, *APPEND_ONLY)] + [
        (name, "DELETE") for name in APPEND_ONLY
    ]


def _trigger_name(name: str, action: str) -> str:
    return f"outbox_no_{action.lower()}_{name}"


def _trigger(vendor: str, name: str, action: str) -> list[str]:
    table, trigger = f"outbox_core_{name}", _trigger_name(name, action)
    text = f"{table} is append-only: {action} refused"
    if vendor == "sqlite":
        refusal = f"BEGIN SELECT RAISE(ABORT, '{text}'); END"
        return [f"CREATE TRIGGER IF NOT EXISTS {trigger} BEFORE {action} ON {table} {refusal}"]
    statements = [
        REFUSE,
        f"DROP TRIGGER IF EXISTS {trigger} ON {table}",
    ]
    # TRUNCATE passes by row triggers, so an append-only table refuses it as a statement.
    event, level = ("DELETE OR TRUNCATE", "STATEMENT") if action == "DELETE" else (action, "ROW")
    statements.append(
        f"CREATE TRIGGER {trigger} BEFORE {event} ON {table} FOR EACH {level} "
        "EXECUTE FUNCTION outbox_refuse()"
    )
    return statements


def _make_groups(using: str) -> None:
    if not apps.is_installed("django.contrib.auth"):
        return
    from django.contrib.auth.management import create_permissions
    from django.contrib.auth.models import Group, Permission

    # This handler may run before the one of django.contrib.auth that creates permissions.
    create_permissions(apps.get_app_config("outbox_core"), verbosity=0, using=using)
    permissions = Permission.objects.using(using).filter(content_type__app_label="outbox_core")
    by_name = {p.codename: p for p in permissions}
    for name, codenames in GROUPS.items():
        group, made = Group.objects.using(using).get_or_create(name=name)
        if made:  # what an administrator took away stays away
            group.permissions.add(*(by_name[c] for c in codenames))
