"""Live parts that look the same to everyone of equal rights are rendered once per tick, not once per client."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from django.http import HttpRequest
from django.utils.translation import get_language

from dashboard.live import feed
from dashboard.permissions import AUDIT, OPERATE, REVEAL, VIEW, allows

MOST = 64  # kept fragments
OLDEST = 1.0  # seconds: what nobody announced shows by then


class Fragments:
    """Rendered text by key, as of a tick."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[int, float, bytes]] = OrderedDict()

    def get(self, key: Hashable, number: int, make: Callable[[], bytes]) -> bytes:
        """What was made for `key` since tick `number`, or else what `make` returns now."""
        with self._lock:
            kept = self._kept.get(key)
        now = time.monotonic()
        if kept is not None and kept[0] == number and now - kept[1] < OLDEST:
            return kept[2]
        made = make()
        with self._lock:
            self._kept[key] = number, now, made
            self._kept.move_to_end(key)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        return made


fragments = Fragments()


def shared(request: HttpRequest, make: Callable[[], bytes]) -> bytes:
    """The live parts of this address for viewers of equal rights; nothing else in them may depend on the user."""
    user: Any = request.user
    held = tuple(allows(user, permission) for permission in (VIEW, OPERATE, REVEAL, AUDIT))
    # The number is taken before anything is read, so that a change while `make` runs makes the next call render anew.
    return fragments.get((request.get_full_path(), held, get_language()), feed.number, make)
