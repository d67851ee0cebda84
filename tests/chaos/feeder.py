"""A thread that publishes steadily while something else goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from django.db import connection, transaction

from outbox_core import Outgoing, publish_many


class Feeder(threading.Thread):
    """Publishes 25 messages of 50 keys at a time, until it is stopped."""

    def __init__(self, pause: float, types: Sequence[str] = ("shop.sold",)) -> None:
        super().__init__(daemon=True)
        self.published, self._pause, self._types = 0, pause, types
        self._stop_asked = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(self._pause):
                with transaction.atomic():
                    numbers = range(self.published, self.published + 25)
                    publish_many(
                        Outgoing(self._types[n % len(self._types)], {"n": n}, key=f"k{n % 50}")
                        for n in numbers
                    )
                self.published += 25
        finally:
            connection.close()

    def stop(self) -> int:
        """How many messages were committed."""
        self._stop_asked.set()
        self.join(30)
        return self.published
