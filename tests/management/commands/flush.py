"""`flush` for the test runner: the audit trail refuses DELETE and TRUNCATE, so its guards are lifted meanwhile."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush

from outbox_core.provision import after_migrate, unguard, unguarded


class Command(flush.Command):
    """Django's flush, between two calls that lift the guards and put them back, with the 64 partitions."""

    def handle(self, **options: Any) -> None:
        using = options["database"]
        unguard(using)
        try:
            super().handle(**options)
        finally:
            if unguarded(using):  # the flush failed, or was told to send no post_migrate
                after_migrate(using)
