"""The receiving side of the loopback broker."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.models import F

from outbox_core.clock import database_now
from outbox_core.models import LoopbackDelivery
from outbox_core.transports.base import BrokerState, Delivery, Difference, Queue
from outbox_core.wakeup import Watch

log = logging.getLogger("outbox.transport")

VISIBILITY = 10.0  # seconds that a delivery is hidden from others; renewed while its consumer lives
RENEW = 2.5  # seconds between renewals
POLL = 0.5  # seconds between looks when nothing wakes


class LoopbackConsumer:
    """Takes deliveries of its queues and hides them from other consumers until they are acked or it is silent."""

    def __init__(self, using: str, queues: Sequence[Queue], declare: Callable[[], list[Difference]]) -> None:
        self.using, self.queues, self._declare = using, {q.name: q for q in queues}, declare
        self.token = secrets.token_hex(16)
        self._held: dict[int, str] = {}  # id -> queue
        self._closed = threading.Event()
        # A thread, since a handler may run for longer than a delivery stays hidden.
        self._renewer = threading.Thread(target=self._renew, name="loopback-renewal", daemon=True)
        self._woken = threading.Event()
        self._watch = Watch(using, lambda what: self._woken.set())
        self._state = BrokerState("connecting")
        self._problems: dict[str, str] = {}
        self._interrupted = False

    def open(self) -> None:
        self._problems = {d.name: f"queue {d.name} {d.detail}" for d in self._declare()}
        self._state = BrokerState("connected", since=datetime.now(UTC))
        self._watch.start()
        self._renewer.start()

    def receive(self, timeout: float) -> list[Delivery]:
        """What has come, in order per queue. Commits that it is taken."""
        end = time.monotonic() + timeout
        while True:
            self._woken.clear()
            if self._anything() and (taken := self._take()):
                return taken
            left = end - time.monotonic()
            if left > 0 and not self._interrupted:
                self._woken.wait(min(left, POLL))
            if left <= 0 or self._interrupted:
                self._interrupted = False
                return []

    def _free_queues(self) -> list[Queue]:
        held = Counter(self._held.values())
        return [
            q for q in self.queues.values() if q.name not in self._problems and held[q.name] < q.prefetch
        ]  # fmt: skip

    def _visible(self, queue: str) -> Any:
        now = database_now(self.using)
        return LoopbackDelivery.objects.using(self.using).filter(queue=queue, visible_at__lte=now)

    def _anything(self) -> bool:
        """A look outside a transaction: on SQLite a transaction that writes is the one write lock."""
        return any(self._visible(q.name).exists() for q in self._free_queues())

    def _take(self) -> list[Delivery]:
        held = Counter(self._held.values())
        taken: list[Delivery] = []
        with transaction.atomic(using=self.using):
            for queue in self._free_queues():
                if queue.single_active and self._someone_else_holds(queue.name):
                    continue
                room = queue.prefetch - held[queue.name]
                rows = list(
                    self._visible(queue.name).order_by("id").select_for_update(skip_locked=True)[:room]
                )
                self._mark(rows)
                taken += [_delivery(row) for row in rows]
        self._held.update({d.handle: d.queue for d in taken})
        return taken

    def _mark(self, rows: Sequence[LoopbackDelivery]) -> None:
        until = database_now(self.using) + timedelta(seconds=VISIBILITY)
        LoopbackDelivery.objects.using(self.using).filter(id__in=[r.id for r in rows]).update(
            taken_by=self.token, visible_at=until, deliveries=F("deliveries") + 1
        )

    def _someone_else_holds(self, queue: str) -> bool:
        now = database_now(self.using)
        others = LoopbackDelivery.objects.using(self.using).filter(queue=queue, visible_at__gt=now)
        return others.exclude(taken_by=self.token).exists()

    def _own(self, ids: Iterable[int]) -> Any:
        return LoopbackDelivery.objects.using(self.using).filter(id__in=list(ids), taken_by=self.token)

    def _renew(self) -> None:
        while not self._closed.wait(RENEW):
            try:
                if held := tuple(self._held):
                    until = database_now(self.using) + timedelta(seconds=VISIBILITY)
                    self._own(held).update(visible_at=until)
            except (DatabaseError, InterfaceError) as error:
                log.warning("Deliveries not kept hidden: %s", error, extra={"action": "renewal_failed"})
                connections[self.using].close()
        connections.close_all()

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        ids = [d.handle for d in deliveries]
        self._own(ids).delete()
        self._let_go(ids)

    def release(self, deliveries: Iterable[Delivery]) -> None:
        ids = [d.handle for d in deliveries]
        self._own(ids).update(visible_at=database_now(self.using), taken_by="")
        self._let_go(ids)

    def _let_go(self, ids: Iterable[int]) -> None:
        for id_ in ids:
            self._held.pop(id_, None)

    def wake(self) -> None:
        self._interrupted = True
        self._woken.set()

    @property
    def state(self) -> BrokerState:
        return self._state

    @property
    def problems(self) -> Mapping[str, str]:
        return self._problems

    def close(self, timeout: float = 5.0) -> None:
        self._watch.stop()
        self._closed.set()
        if self._renewer.is_alive():
            self._renewer.join(timeout)
        if self._held:
            self._own(self._held).update(visible_at=database_now(self.using), taken_by="")
            self._held.clear()
        self._state = BrokerState("down", "closed", datetime.now(UTC))
        connections[self.using].close_if_unusable_or_obsolete()


def _delivery(row: LoopbackDelivery) -> Delivery:
    p = row.properties
    return Delivery(
        handle=row.id, queue=row.queue, body=bytes(row.body), message_id=p.get("message_id") or None,
        type=p.get("type", ""), exchange=row.exchange, routing_key=row.routing_key,
        redelivered=row.deliveries > 0, headers=row.headers, content_type=p.get("content_type", ""),
        correlation_id=p.get("correlation_id", ""), app_id=p.get("app_id", ""), timestamp=p.get("timestamp"),
    )  # fmt: skip
