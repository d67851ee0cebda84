"""The data: facts are inserted once and never updated; state is which small table holds the row."""

from outbox_core.models.broker import LoopbackBinding, LoopbackDelivery, LoopbackQueue
from outbox_core.models.inbox import Binding, Duplicate, Handling, Newest, Receipt
from outbox_core.models.message import Dispatch, FailedAttempt, Message
from outbox_core.models.operation import Operation, OperationItem
from outbox_core.models.pending import Parked, Pending
from outbox_core.models.worker import PARTITIONS, Lease, Partition, Tally, Worker

__all__ = [
    "PARTITIONS", "Binding", "Dispatch", "Duplicate", "FailedAttempt", "Handling", "Lease",
    "LoopbackBinding", "LoopbackDelivery", "LoopbackQueue", "Message", "Newest", "Operation",
    "OperationItem", "Parked", "Partition", "Pending", "Receipt", "Tally", "Worker",
]  # fmt: skip
