"""The sending side of the loopback broker."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import DatabaseError, InterfaceError, connections, transaction

from outbox_core import crash, wakeup
from outbox_core.clock import lease_clock
from outbox_core.models import LoopbackBinding, LoopbackDelivery, LoopbackQueue
from outbox_core.transports.amqp_frames import Unsendable, encode
from outbox_core.transports.base import BrokerState, Outcome, Result, Send
from outbox_core.transports.topics import matches


class Routes:
    """Which queues a message reaches, from one look at the bindings."""

    def __init__(self, using: str, exchange: str) -> None:
        self.queues = set(LoopbackQueue.objects.using(using).values_list("name", flat=True))
        self.bindings: dict[str, list[tuple[str, str]]] = {exchange: []}
        rows = LoopbackBinding.objects.using(using).values_list("exchange", "pattern", "queue_id")
        for name, pattern, queue in rows:
            self.bindings.setdefault(name, []).append((pattern, queue))

    def exists(self, exchange: str) -> bool:
        return exchange == "" or exchange in self.bindings

    def queues_for(self, exchange: str, routing_key: str) -> set[str]:
        if exchange == "":  # the default exchange: straight to the queue of that name
            return {routing_key} & self.queues
        return {queue for pattern, queue in self.bindings[exchange] if matches(pattern, routing_key)}


class LoopbackPublisher:
    """Accepts messages in transactions of up to `batch`, in the thread that calls `submit`."""

    def __init__(self, using: str, exchange: str, batch: int) -> None:
        self.using, self.exchange, self.batch = using, exchange, batch
        self._results: list[Result] = []
        self._woken = threading.Event()
        self._state = BrokerState("connecting")

    def open(self) -> None:
        self._state = BrokerState("connected", since=datetime.now(UTC))

    def submit(self, lanes: Sequence[Sequence[Send]], deadline: float) -> None:
        """Accept the lanes, whole lanes together. A lane goes in order within one transaction, so first copies do
        too; it ends at the first message that is not accepted."""
        batch: list[Sequence[Send]] = []
        size = 0
        for lane in lanes:
            batch.append(lane)
            size += len(lane)
            if size >= self.batch:
                self._accept(batch, deadline)
                batch, size = [], 0
        if batch:
            self._accept(batch, deadline)

    def _accept(self, lanes: Sequence[Sequence[Send]], deadline: float) -> None:
        everything = [send for lane in lanes for send in lane]
        if lease_clock() >= deadline or not self._state.usable:
            self._finish([Result(send, Outcome.UNSENT) for send in everything])
            return
        try:
            with transaction.atomic(using=self.using):
                # Asked again: SQLite's write lock may have been waited for beyond the end of the lease.
                if lease_clock() >= deadline:
                    results = [Result(send, Outcome.UNSENT) for send in everything]
                else:
                    results = self._route(lanes)
                    wakeup.announce(self.using, wakeup.CHANGED)
        except (DatabaseError, InterfaceError) as error:
            # The reply to the COMMIT may be what was lost, so nobody knows.
            connections[self.using].close()
            results = [Result(s, Outcome.UNKNOWN, "ConnectionLost", str(error)) for s in everything]
        else:
            crash.point("published")
        self._finish(results)

    def _route(self, lanes: Sequence[Sequence[Send]]) -> list[Result]:
        routes = Routes(self.using, self.exchange)
        results: list[Result] = []
        copies: list[LoopbackDelivery] = []
        for lane in lanes:
            for i, send in enumerate(lane):
                result = self._judge(routes, send)
                results.append(result)
                if result.outcome is Outcome.CONFIRMED:
                    copies += [
                        _copy(q, send) for q in sorted(routes.queues_for(send.exchange, send.routing_key))
                    ]
                else:
                    results += [Result(rest, Outcome.UNSENT) for rest in lane[i + 1 :]]
                    break
        LoopbackDelivery.objects.using(self.using).bulk_create(copies, batch_size=500)
        return results

    def _judge(self, routes: Routes, send: Send) -> Result:
        try:
            encode(send, channel=1, frame_max=0)  # what RabbitMQ could not be sent is refused here too
        except Unsendable as fault:
            return Result(send, Outcome.INVALID, fault.error, fault.detail)
        if not routes.exists(send.exchange):
            detail = f'ExchangeNotFound: NOT_FOUND - no exchange "{send.exchange}" for "{send.routing_key}"'
            return Result(send, Outcome.REFUSED, "ExchangeNotFound", detail)
        if send.mandatory and not routes.queues_for(send.exchange, send.routing_key):
            where = f'"{send.routing_key}" on exchange "{send.exchange}"'
            return Result(send, Outcome.RETURNED, "Unroutable", f"Unroutable: no queue is bound to {where}")
        return Result(send, Outcome.CONFIRMED)

    def _finish(self, results: list[Result]) -> None:
        self._results += results
        self._woken.set()

    def extend(self, deadline: float) -> None:
        """Nothing is ever queued here."""

    def take(self) -> list[Result]:
        results, self._results = self._results, []
        return results

    def wait(self, timeout: float) -> bool:
        woken = bool(self._results) or self._woken.wait(timeout)
        self._woken.clear()
        return woken

    def wake(self) -> None:
        self._woken.set()

    def fence(self) -> None:
        """What was accepted and not taken stays a fact; nothing else is left."""
        facts = (Outcome.CONFIRMED, Outcome.RETURNED)
        self._results = [
            Result(r.send, r.outcome, r.error, r.detail, stale=True)
            for r in self._results
            if r.outcome in facts
        ]

    @property
    def outstanding(self) -> int:
        return 0

    @property
    def state(self) -> BrokerState:
        return self._state

    def close(self, timeout: float = 5.0) -> None:
        self._state = BrokerState("down", "closed", datetime.now(UTC))


def _copy(queue: str, send: Send) -> LoopbackDelivery:
    properties = {
        "message_id": send.message_id, "type": send.type, "timestamp": send.timestamp,
        "correlation_id": send.correlation_id, "app_id": send.app_id, "content_type": send.content_type,
    }  # fmt: skip
    return LoopbackDelivery(
        queue=queue, exchange=send.exchange, routing_key=send.routing_key, properties=properties,
        headers=dict(send.headers), body=send.body,
    )  # fmt: skip
