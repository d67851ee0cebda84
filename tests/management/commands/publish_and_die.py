"""A business process that dies right after its COMMIT, before anything else of it can run."""

from __future__ import annotations

import os
import signal
from typing import Any

from django.contrib.auth.models import Group
from django.core.management.base import BaseCommand
from django.db import transaction

from outbox_core import publish


class Command(BaseCommand):
    """Commits a business row and its message, and is killed by the first hook that runs after the commit."""

    def handle(self, **options: Any) -> None:
        with transaction.atomic():
            transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
            Group.objects.create(name="order 7")
            publish("orders.placed", {"order_id": 7}, key="order-7")
