"""Publishing: a message is a row in the caller's own transaction, and nothing else.

Whether and when the broker gets it is the dispatcher's work, or in direct mode this process's, after the commit. So
a message exists if and only if the business data does (the transactional outbox: C. Richardson, Microservices
Patterns, 2018, ch. 3).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import connections, router, transaction

from outbox_core import context, wakeup
from outbox_core.clock import database_now, lease_clock
from outbox_core.conf import settings
from outbox_core.errors import InvalidMessage, MessageConflict, NotInTransaction
from outbox_core.models import Duplicate, Message, Pending
from outbox_core.outbox import direct
from outbox_core.outbox.outgoing import Checked, Outgoing, check
from outbox_core.sql import Dialect

CHUNK = 1000  # messages per statement
LOCK_CLASS, LOCK_SLOTS = (
    0x6F62,
    1024,
)  # advisory locks of KEY_LOCK: one lock per key would exhaust shared memory

_COLUMNS = (
    "message_id", "type", "key", "destination", "payload", "digest", "headers", "correlation_id",
    "causation_id", "traceparent", "source", "mandatory",
)  # fmt: skip


def publish(
    type: str,
    payload: object,
    *,
    key: str = "",
    destination: str | None = None,
    headers: Mapping[str, Any] | None = None,
    message_id: UUID | str | None = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    delay: object = None,
    mandatory: bool | None = None,
    using: str | None = None,
) -> Message:
    """Publish one message as part of the running transaction. It exists if and only if that commits.

    `type` is the message's type and, unless `destination` says otherwise, its routing key (1 to 255 bytes).
    `payload` is anything that JSON has a form for; it is kept as exact text (up to MAX_PAYLOAD_BYTES).
    `key`: messages of one key are first sent in the order in which they were published; others do not wait.
    `destination` is `exchange` or `exchange/routing_key`; left out, the exchange of the settings.
    `headers` go along with it (64 KiB; `outbox-*`, `cloudEvents_*` and `traceparent` are reserved).
    `message_id` is a UUID; left out, a new UUIDv7, and inside a handler one derived from the incoming message.
    The same id again with the same content is no second message (and is recorded as a duplicate).
    `correlation_id`, `causation_id`: left out, taken from the message that is being handled.
    `delay` (seconds or timedelta) keeps it back; it takes its place in its key when it falls due.
    `mandatory=False` lets the broker drop it silently where no queue is bound.
    `using` is the database alias; left out, that of the running handler, else the one that the router gives.

    Raises NotInTransaction, InvalidMessage (with `.field` and `.limit`) or MessageConflict; then nothing was
    written here, and the transaction is the caller's to roll back.

        with transaction.atomic():
            product.save()
            publish("catalog.price_changed", {"product_id": 7, "new_price": "25.00"}, key="product-7")
    """
    item = Outgoing(
        type, payload, key, destination, headers, message_id, correlation_id, causation_id, delay, mandatory
    )  # fmt: skip
    return _store([check(item)], _alias(using))[0]


def publish_many(items: Iterable[Outgoing], *, using: str | None = None) -> list[Message]:
    """Publish many messages as part of the running transaction, in order, with two statements per 1,000.

    Every item is checked before the first is written. Errors are those of `publish()`; their field begins with
    `items[<index>]`. Nothing of the list is written if one is refused.
    """
    checked = []
    for number, item in enumerate(items):
        if not isinstance(item, Outgoing):
            raise InvalidMessage(f"items[{number}]", "an Outgoing", type(item).__name__)
        try:
            checked.append(check(item))
        except InvalidMessage as error:
            raise InvalidMessage(f"items[{number}].{error.field}", error.limit, error.actual) from None
    return _store(checked, _alias(using))


def _alias(using: str | None) -> str:
    """Inside a handler: its own database, since its effects, its receipt and its messages commit together."""
    incoming = context.current()
    return using or (incoming.using if incoming else "") or router.db_for_write(Message)


def _store(items: Sequence[Checked], using: str) -> list[Message]:
    connection = connections[using]
    if connection.in_atomic_block:
        return _insert(items, using)
    if settings.REQUIRE_TRANSACTION:
        raise NotInTransaction(
            f'publish() needs a transaction on database "{using}": wrap it in transaction.atomic() '
            "together with the change that it tells of"
        )
    with transaction.atomic(using=using):
        return _insert(items, using)


def _insert(items: Sequence[Checked], using: str) -> list[Message]:
    if settings.KEY_LOCK:
        _lock_keys(items, using)
    known: dict[UUID, Message] = {}
    written: list[int] = []
    result: list[Message] = []
    directly: list[Message] = []
    started = lease_clock()
    rest = iter(items)
    while chunk := list(islice(rest, CHUNK)):
        new = _insert_or_find(chunk, known, using)
        written.extend(m.id for m in new)
        _check_conflicts(chunk, known, {m.message_id for m in new}, written, using)
        fresh = [c for c in _once(chunk) if known[c.message_id] in new]
        _insert_pending(fresh, known, using)
        directly.extend(known[c.message_id] for c in fresh if _goes_directly(c))
        result.extend(known[c.message_id] for c in chunk)
    if directly:
        transaction.on_commit(partial(direct.offer, using, directly, started), using=using, robust=True)
    wakeup.announce(using, wakeup.CHANGED if len(directly) == len(written) else wakeup.PENDING)
    return result


def _goes_directly(item: Checked) -> bool:
    """Whether this process sends it itself: of a key, only the dispatcher knows the order."""
    return settings.MODE == "direct" and not item.key and not item.delay


def _once(chunk: Sequence[Checked]) -> list[Checked]:
    return list({c.message_id: c for c in reversed(chunk)}.values())[::-1]


def _insert_or_find(chunk: Sequence[Checked], known: dict[UUID, Message], using: str) -> set[Message]:
    """Make every message of the chunk `known`; returns those that are new."""
    new = _insert_messages(chunk, known, using)
    while missing := [c for c in chunk if c.message_id not in known]:
        for message in Message.objects.using(using).filter(message_id__in=[c.message_id for c in missing]):
            known[message.message_id] = message
        if gone := [c for c in missing if c.message_id not in known]:  # pruned between the two statements
            new |= _insert_messages(gone, known, using)
    return new


def _insert_messages(chunk: Sequence[Checked], known: dict[UUID, Message], using: str) -> set[Message]:
    """Insert those whose id is new, in order, so that `id` is their place. Adds them to `known`."""
    db = Dialect(using)
    fields = [f for f in Message._meta.concrete_fields if f.name in _COLUMNS]
    row = f"({', '.join(['%s'] * len(fields))})"
    rows = db.execute(
        f"INSERT INTO {Message._meta.db_table} ({', '.join(f.name for f in fields)}) "
        f"VALUES {', '.join([row] * len(chunk))} "
        "ON CONFLICT (message_id) DO NOTHING RETURNING id, message_id, created_at",
        [f.get_db_prep_save(getattr(c, f.name), db.connection) for c in chunk for f in fields],
    )
    content = {c.message_id: c for c in reversed(chunk)}
    new = set()
    for id_, given, created_at in rows:
        message_id = given if isinstance(given, UUID) else UUID(given)
        values = {name: getattr(content[message_id], name) for name in _COLUMNS}
        message = Message(id=id_, created_at=db.from_database(created_at), **values)
        message._state.adding, message._state.db = False, using
        known[message_id] = message
        new.add(message)
    return new


def _check_conflicts(
    chunk: Sequence[Checked], known: dict[UUID, Message], new: set[UUID], written: Sequence[int], using: str
) -> None:
    """An id that was there already: the same content is a duplicate to record, other content an error."""
    again, first = [], set(new)
    for c in chunk:
        if c.message_id in first:
            first.remove(c.message_id)
            continue
        message = known[c.message_id]
        if (c.digest, c.type, c.key) != (message.digest, message.type, message.key):
            # A caller that catches this inside its transaction must not find half of a list.
            Message.objects.using(using).filter(id__in=written).delete()
            Pending.objects.using(using).filter(message__in=written).delete()
            raise MessageConflict(c.message_id)
        again.append(message)
    if again:
        now = database_now(using)
        Duplicate.objects.using(using).bulk_create(
            Duplicate(
                message_id=str(m.message_id),
                type=m.type,
                cause="producer",
                gap=now - m.created_at,
                same_payload=True,
                digest=m.digest,
            )
            for m in again
        )


def _insert_pending(chunk: Sequence[Checked], known: dict[UUID, Message], using: str) -> None:
    if not chunk:
        return
    db = Dialect(using)
    row = f"(%s, %s, %s, %s, %s, %s, {db.later}, %s, %s, false, 0, 0, 'first', '', '')"
    later, values = db.later_parameter(), []
    for c in chunk:
        id_, directly = known[c.message_id].id, _goes_directly(c)
        wait = settings.DIRECT_GRACE if directly else c.delay
        values += [id_, c.partition, c.key, id_, c.type, c.destination, later(wait), c.delay > 0, directly]
    db.execute(
        f"INSERT INTO {Pending._meta.db_table} (message, partition, key, position, type, destination, "
        "available_at, scheduled, direct, late, attempts, failures, cause, error_class, last_error) "
        f"VALUES {', '.join([row] * len(chunk))}",
        values,
    )


def _lock_keys(items: Sequence[Checked], using: str) -> None:
    """Wait for other transactions that published these keys (KEY_LOCK). SQLite has one writer anyway."""
    slots = sorted({zlib.crc32(c.key.encode()) % LOCK_SLOTS for c in items if c.key})
    db = Dialect(using)
    if slots and db.postgresql:
        db.execute(
            "SELECT pg_advisory_xact_lock(%s, slot) FROM unnest(%s::int[]) AS slot", [LOCK_CLASS, slots]
        )
