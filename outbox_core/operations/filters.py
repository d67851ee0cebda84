"""The filters that choose messages: one dataclass for the pages, the command line and the audit trail."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Selection:
    """The filters; what is empty does not filter.

    `state` of states.State, or '' for all. `type` and `destination` exact, or with `*` for any text; `key` and
    `correlation` exact. `error` is a fingerprint, an error class, or part of the error's text. `since`, `until` and
    `older_than` (seconds) are about the commit. `limit` ends `matching`.
    """

    state: str = ""
    type: str = ""
    destination: str = ""
    key: str = ""
    error: str = ""
    correlation: str = ""
    since: datetime | None = None
    until: datetime | None = None
    older_than: float | None = None
    ids: tuple[UUID, ...] = ()
    limit: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is filtered (`limit` is no filter)."""
        return all(getattr(self, f.name) in ("", None, ()) for f in fields(self) if f.name != "limit")

    def as_json(self) -> dict[str, Any]:
        """The filters that are set, for the audit trail."""
        chosen = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: _plain(value) for name, value in chosen.items() if value not in ("", None, ())}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(v) for v in value]
    return value.isoformat() if isinstance(value, datetime) else value
