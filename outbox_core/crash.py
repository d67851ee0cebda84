"""Named crash points, so that a test can kill a process at the worst moment.

`OUTBOX_CRASH_AT=<point>[:n]` ends the process with SIGKILL at the n-th passage of the point, and only
with `OUTBOX_ALLOW_CRASH=1`: a stray variable must not take production down.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

POINTS = (
    "read", "marked", "published", "confirmed", "settled",
    "receipt", "handled", "committed", "acked",
)  # fmt: skip


def _armed(environ: Mapping[str, str]) -> tuple[str, int]:
    if environ.get("OUTBOX_ALLOW_CRASH") != "1":
        return "", 0
    name, _, passage = environ.get("OUTBOX_CRASH_AT", "").partition(":")
    return name, int(passage or 1)


_name, _left = _armed(os.environ)


def point(name: str) -> None:
    """Pass the crash point `name`; does not return if the process was told to die here."""
    global _left
    if name == _name:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
