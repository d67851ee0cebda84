"""What caused a message, and what it caused."""

from __future__ import annotations

from uuid import UUID

from outbox_core.models import Message

DEEPEST = 20  # causes that are followed back
MOST = 100  # effects that are shown


def causes(message: Message, using: str = "default") -> list[Message]:
    """The chain that led to `message`, the first cause first. Ends at a message from elsewhere, or a pruned one."""
    chain: list[Message] = []
    seen = {message.message_id}
    while message.causation_id and len(chain) < DEEPEST:
        try:
            id_ = UUID(message.causation_id)
        except ValueError:  # from a producer elsewhere
            break
        above = Message.objects.using(using).defer("payload", "headers").filter(message_id=id_).first()
        if above is None or above.message_id in seen:
            break
        seen.add(above.message_id)
        chain.append(above)
        message = above
    return chain[::-1]


def effects(message: Message, using: str = "default") -> list[Message]:
    """What was published while `message` was handled, oldest first, at most `MOST`."""
    caused = (
        Message.objects.using(using).defer("payload", "headers").filter(causation_id=str(message.message_id))
    )
    return list(caused.order_by("id")[:MOST])
