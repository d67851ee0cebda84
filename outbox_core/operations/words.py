"""The words for verbs, causes and durations, the same on every screen and in the terminal."""

from __future__ import annotations

DONE = {"retry": "retried", "redispatch": "redispatched", "mark": "marked", "discard": "discarded"}

CAUSES = {
    "first": "first send",
    "retry": "after a failure",
    "resend": "sent again, since the outcome of an earlier send is unknown",
    "operator": "sent by a person",
}


LONG = 240  # characters of a line that are shown before someone asks for more
_TRACEBACK = "Traceback (most recent call last)"


def gist(error: str) -> tuple[str, str]:
    """The line of an error that says what it is (the first; of a traceback the last), and all of it if that leaves
    anything out."""
    lines = error.strip().splitlines() or [""]
    line = lines[-1].strip() if _TRACEBACK in lines[0] else lines[0].strip()
    short = line if len(line) <= LONG else f"{line[: LONG - 1]}…"
    return short, "" if short == error.strip() else error.strip()


def duration(seconds: float) -> str:
    """A duration for people, in at most two units: 0.3 s, 12 s, 4 min 12 s, 3 h 5 min, 2 d 4 h."""
    if round(seconds, 1) < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for size, name, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def plural(n: int, one: str, many: str = "") -> str:
    """`1 message`, `2 messages`, `1,204 messages`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
