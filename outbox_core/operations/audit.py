"""The audit trail: rows chained by a keyed hash, so that a change, a gap or a swap shows.

Each row's hash is HMAC-SHA256, with `OUTBOX["AUDIT_KEY"]`, over the hash of the row before it and a canonical
JSON of the row. Who can write to the database but lacks the key cannot forge a row. Rows that were cut off at
the end leave a chain that is whole: compare its head with the one that was logged or printed (`head`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django.db import connections, transaction

from outbox_core.clock import database_now
from outbox_core.conf import settings
from outbox_core.errors import InvalidMessage
from outbox_core.jsontext import text
from outbox_core.models import Operation

log = logging.getLogger("outbox.audit")

CHAIN_LOCK = 0x6F7574626F78  # "outbox": one advisory lock for the chain's end
LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a user's id and name, from where (`dashboard`, `admin`, `cli`, `system`), and the remote address."""

    id: str
    name: str
    origin: str
    remote: str = ""


def checked_reason(reason: str) -> str:
    """The reason without blanks around it. Raises InvalidMessage (field `reason`) unless it has 1 to 500 characters."""
    reason = text(str(reason or "").strip(), "reason")
    if not reason:
        raise InvalidMessage(
            "reason",
            f"1 to {LONGEST_REASON} characters",
            "nothing",
            "reason: say why, in 1 to 500 characters",
        )
    if len(reason) > LONGEST_REASON:
        raise InvalidMessage("reason", f"{LONGEST_REASON} characters", f"{len(reason)} characters")
    return reason


def reserve(using: str) -> int:
    """Take the chain's lock until the transaction ends, and draw the id of the next row.

    Ids are drawn under the lock: the order of ids is the order of the chain. Nothing that may wait for
    another lock belongs behind this call.
    """
    connection = connections[using]
    table = Operation._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # No one may sit on the chain either: a verb waits for it with the lock of a dispatcher's lease in hand.
            idle = f"{int(settings.LEASE * 500)}ms"
            cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [idle])
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [CHAIN_LOCK])
            cursor.execute("SELECT nextval(pg_get_serial_sequence(%s, 'id'))", [table])
            return int(cursor.fetchone()[0])
        # The IMMEDIATE transaction is the lock.
        cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
        row = cursor.fetchone()
        return (row[0] if row else 0) + 1


def record(
    using: str, *, actor: Actor, verb: str, reason: str, outcome: str = "done", message_id: str = "",
    selection: Mapping[str, Any] | None = None, before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None, id: int | None = None,
) -> Operation:  # fmt: skip
    """Write one row at the end of the chain, inside the caller's transaction and as its last statement.

    `id` is what `reserve` gave, if the caller needed it before. Raises InvalidMessage for a bad reason.
    """
    reason = checked_reason(reason)
    if not connections[using].in_atomic_block:
        raise transaction.TransactionManagementError(
            "audit.record() needs the transaction of what it records"
        )
    if id is None:
        id = reserve(using)
    operation = Operation(
        id=id, at=database_now(using), actor_id=actor.id[:64], actor=actor.name[:255], origin=actor.origin,
        remote=actor.remote[:64], verb=verb, reason=reason, message_id=message_id, selection=_exact(selection or {}),
        outcome=outcome, before=_exact(before or {}), after=_exact(after or {}), previous_hash=head(using)[1],
    )  # fmt: skip
    operation.hash = _digest(operation)
    operation.save(using=using, force_insert=True)
    transaction.on_commit(lambda: _tell(operation), using=using, robust=True)
    return operation


def head(using: str = "default") -> tuple[int, str]:
    """Id and hash of the chain's last row; (0, "") if there is none."""
    last = Operation.objects.using(using).order_by("-id").values_list("id", "hash").first()
    return last or (0, "")


def verify(using: str = "default") -> list[str]:
    """Walk the whole chain in the order of ids; one sentence for each row that does not fit, empty if all do."""
    problems: list[str] = []
    previous = ""
    for row in Operation.objects.using(using).order_by("id").iterator(chunk_size=1000):
        if row.previous_hash != previous:
            problems.append(f"Operation {row.id}: the row before it was removed, inserted or changed.")
        if not hmac.compare_digest(row.hash, _digest(row)):
            problems.append(
                f"Operation {row.id}: its content was changed, or it was written with another AUDIT_KEY."
            )
        previous = row.hash
    return problems


def _digest(row: Operation) -> str:
    content = {
        "id": row.id, "at": row.at.astimezone(UTC).isoformat(timespec="microseconds"), "actor_id": row.actor_id,
        "actor": row.actor, "origin": row.origin, "remote": row.remote, "verb": row.verb, "reason": row.reason,
        "message_id": row.message_id, "selection": row.selection, "outcome": row.outcome,
        "before": row.before, "after": row.after,
    }  # fmt: skip
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    data = f"{row.previous_hash}\n{canonical}".encode()
    return hmac.new(settings.AUDIT_KEY.encode(), data, hashlib.sha256).hexdigest()


def _exact(value: Any) -> Any:
    """`value` as JSON that both databases give back as it was: PostgreSQL rewrites floats, so they become text."""
    match value:
        case None | bool() | int():
            return value
        case Mapping():
            return {str(k): _exact(v) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_exact(v) for v in value]
        case float():
            return int(value) if value.is_integer() else repr(value)
    return str(value)


def _tell(operation: Operation) -> None:
    log.info(
        "%s: %s by %s (%s): %s", operation.verb, operation.message_id or "a selection", operation.actor,
        operation.origin, operation.reason,
        extra={
            "action": "operated", "message_id": operation.message_id, "operation": operation.id,
            "audit_head": operation.hash,
        },
    )  # fmt: skip
