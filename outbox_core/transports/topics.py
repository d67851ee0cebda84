"""Topic patterns as AMQP 0-9-1 defines them: words between dots, `*` one word, `#` any number of words."""

from __future__ import annotations

from functools import lru_cache


def matches(pattern: str, type: str) -> bool:
    """Whether a topic pattern matches a routing key: `*` one word, `#` any number of words, none too."""
    return _words_match(tuple(pattern.split(".")) if pattern else (), tuple(type.split(".")) if type else ())


@lru_cache(maxsize=4096)
def _words_match(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    # Row by row over the pattern, so the time is their product: patterns like #.#.#.# must not explode.
    reachable = [True] + [False] * len(words)
    for part in pattern:
        if part == "#":
            first = reachable.index(True) if True in reachable else len(words) + 1
            reachable = [i >= first for i in range(len(words) + 1)]
        else:
            reachable = [False] + [reachable[i] and part in ("*", word) for i, word in enumerate(words)]
    return reachable[-1]
