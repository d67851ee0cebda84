"""The embedded broker: queues, bindings and deliveries in the project's own database.

It behaves as a broker does, so that nothing is hidden on a laptop: *accepting* a message is a transaction of its own,
apart from the one that settles it; it delivers at least once, with redelivery flags, prefetch and visibility
time-outs; it returns what no queue is bound for, and refuses an exchange that does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from outbox_core.models import LoopbackBinding, LoopbackQueue
from outbox_core.transports.base import Difference, Queue
from outbox_core.transports.loopback_consumer import LoopbackConsumer
from outbox_core.transports.loopback_publisher import LoopbackPublisher


class Loopback:
    """The loopback broker that lives in the database `using`."""

    name = "loopback"

    def __init__(self, using: str, exchange: str, batch: int = 500) -> None:
        self.using, self.exchange, self.batch = using, exchange, batch

    def publisher(self) -> LoopbackPublisher:
        return LoopbackPublisher(self.using, self.exchange, self.batch)

    def consumer(self, queues: Sequence[Queue]) -> LoopbackConsumer:
        return LoopbackConsumer(self.using, queues, lambda: self.apply_topology(queues))

    def check_topology(self, queues: Sequence[Queue]) -> list[Difference]:
        """What is missing or differs, without changing anything."""
        there = {q.name: q for q in LoopbackQueue.objects.using(self.using).all()}
        bound = set(
            LoopbackBinding.objects.using(self.using).filter(exchange=self.exchange)
            .values_list("queue_id", "pattern")
        )  # fmt: skip
        differences = []
        for queue in queues:
            if queue.name not in there:
                differences.append(Difference("queue", queue.name, "is missing"))
            elif there[queue.name].single_active != queue.single_active:
                differences.append(_mismatch(queue))
            for pattern in queue.patterns:
                if (queue.name, pattern) not in bound:
                    differences.append(
                        Difference("binding", queue.name, f"{self.exchange}:{pattern} is missing")
                    )
        return differences

    def apply_topology(
        self, queues: Sequence[Queue], gone: Sequence[tuple[str, str]] = ()
    ) -> list[Difference]:
        """Declare queues and bindings, and unbind `gone`. One transaction; returns what only a person may resolve."""
        differences = []
        with transaction.atomic(using=self.using):
            bindings = LoopbackBinding.objects.using(self.using)
            for queue in queues:
                there, _ = LoopbackQueue.objects.using(self.using).get_or_create(
                    name=queue.name, defaults={"single_active": queue.single_active}
                )
                if there.single_active != queue.single_active:
                    differences.append(_mismatch(queue))
                    continue
                for pattern in queue.patterns:
                    bindings.get_or_create(queue=there, exchange=self.exchange, pattern=pattern)
            for name, pattern in gone:
                bindings.filter(queue=name, exchange=self.exchange, pattern=pattern).delete()
        return differences


def _mismatch(queue: Queue) -> Difference:
    wanted = "with" if queue.single_active else "without"
    return Difference("queue", queue.name, f"exists, but not {wanted} a single active consumer")
