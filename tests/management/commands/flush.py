"""`flush` for the test runner, which calls it after every transactional test.

The audit trail refuses DELETE and TRUNCATE, so its guards are lifted meanwhile. And on PostgreSQL a TRUNCATE of thirty
tables takes far longer than most tests: rows are deleted, where there are any.
"""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush
from django.db import connections, transaction

from outbox_core.provision import APPEND_ONLY, after_migrate, unguard, unguarded

FROM_MIGRATIONS = {"django_migrations", "django_content_type", "auth_permission"}  # no test writes these


class Command(flush.Command):
    """Empties all tables and puts back what a migration leaves: partitions, groups, guards."""

    def handle(self, **options: Any) -> None:
        using = options["database"]
        try:
            if options.get("reset_sequences", True):
                unguard(using)
                super().handle(**options)
            else:
                self._delete(using)
                after_migrate(using)
        finally:
            if unguarded(using):
                after_migrate(using)

    def _delete(self, using: str) -> None:
        connection = connections[using]
        tables = sorted(
            set(connection.introspection.django_table_names(only_existing=True)) - FROM_MIGRATIONS
        )
        quoted = {table: connection.ops.quote_name(table) for table in tables}
        with transaction.atomic(using=using), connection.cursor() as cursor:
            filled = " UNION ALL ".join(
                f"SELECT '{t}' WHERE EXISTS (SELECT 1 FROM {quoted[t]})" for t in tables
            )
            cursor.execute(filled)
            names = {row[0] for row in cursor.fetchall()}
            if names & {f"outbox_core_{name}" for name in APPEND_ONLY}:
                unguard(using)
            for name in sorted(names):  # foreign keys are checked at the commit
                cursor.execute(f"DELETE FROM {quoted[name]}")
