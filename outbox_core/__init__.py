"""Outboard's engine: a transactional outbox, the workers that deliver it, and the inbox on the other side.

The flow, with the files in reading order:

1. `publish()` inserts a Message and a Pending row in the caller's transaction      outbox/outgoing.py, producer.py
2. a dispatcher owns some of 64 partitions by a lease                               outbox/leases.py
3. in a turn it settles, reads what may go and writes down what it will send        outbox/turn.py, queue.py, settle.py
4. between turns it publishes with pipelined confirms                              outbox/relay.py, transports/
5. a consumer takes deliveries off its queue, and a receiver runs each once         inbox/consumer.py, receiver.py
6. a handler's effects, its receipt and what it publishes commit together           inbox/receiver.py
7. what failed waits in a table, and every duplicate is recorded                    models/
8. people retry, redispatch, mark and discard; each act is audited                  operations/verbs.py

Names are imported when they are first used, so that the package can be an installed app.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outbox_core.verdicts import Reject, RetryLater

if TYPE_CHECKING:
    from outbox_core.inbox.registry import subscribe as subscribe
    from outbox_core.outbox.outgoing import Outgoing as Outgoing
    from outbox_core.outbox.producer import publish as publish
    from outbox_core.outbox.producer import publish_many as publish_many

__all__ = ["Outgoing", "Reject", "RetryLater", "publish", "publish_many", "subscribe"]

_HOMES = {
    "Outgoing": "outbox_core.outbox.outgoing",
    "publish": "outbox_core.outbox.producer",
    "publish_many": "outbox_core.outbox.producer",
    "subscribe": "outbox_core.inbox.registry",
}


def __getattr__(name: str) -> Any:
    # The models can only be imported once Django's apps are loaded, which this package is one of.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
