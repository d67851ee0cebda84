"""What to do: a paragraph for each error class, and for each thing that a message may wait for."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

ADVICE: dict[str, str | Promise] = {
    "Unroutable": _(
        "No queue is bound for this routing key. If a consumer should get it, start that consumer (it "
        "declares its queue and bindings), or run outbox_topology --check to see what is missing and "
        "--apply to declare it; then retry. If nobody needs it, discard it, or publish such messages with"
        " mandatory=False."
    ),
    "ExchangeNotFound": _(
        "The exchange does not exist on the broker. Compare the destination with what is declared: "
        "outbox_topology --check. Declare it with --apply, or correct the destination in the code and "
        "discard this message; then retry."
    ),
    "AccessRefused": _(
        "The broker's user may not write to this exchange. Grant it (rabbitmqctl set_permissions), or use"
        " another destination; then retry."
    ),
    "PreconditionFailed": _(
        "The broker has something of this name with other properties, or refuses a property of the "
        "message. The error names what it expects and what it found. Change one of the two, then retry."
    ),
    "TopologyMismatch": _(
        "An exchange or queue of this name exists with other properties than the code declares. "
        "outbox_topology --check names both. Delete it on the broker or change the code; then retry."
    ),
    "MessageTooLarge": _(
        "The body is larger than the broker takes, so it can never be sent as it is. Raise the broker's "
        "max_message_size, or publish a reference to the data and discard this message."
    ),
    "HeadersTooLarge": _(
        "The headers are larger than one frame of the connection. Publish with fewer headers and discard "
        "this message."
    ),
    "PropertyTooLong": _(
        "A property is longer than 255 bytes, which AMQP has no form for. Correct the producer and "
        "discard this message."
    ),
    "BadHeader": _(
        "A header has a value that AMQP has no form for. Correct the producer and discard this message."
    ),
    "BadProperty": _(
        "A header or property has a value that the broker does not take. Correct the producer and discard"
        " this message."
    ),
    "Nacked": _(
        "The broker did not take the message: a queue is full, or its disk or replica failed. Nothing "
        "counts towards dead. Let the consumers catch up, or raise the queue's limit; sending goes on by "
        "itself."
    ),
    "ConnectionLost": _(
        "The connection broke before a confirm came, so the message may have been sent. It is sent again "
        "with the same id, and consumers ignore a second copy. If this repeats, look at the broker's log "
        "and the network."
    ),
    "ConfirmTimeout": _(
        "The broker did not confirm in time, so the message may have been sent. It is sent again with the"
        " same id. If this repeats, the broker is overloaded: look at its disk and its queues."
    ),
    "MaybeSent": _(
        "Its dispatcher stopped before it knew what became of the message, which may have been sent. It "
        "is sent again with the same id, and consumers ignore a second copy."
    ),
    "BrokerUnreachable": _(
        "The broker does not answer. Messages wait and nothing counts towards dead; sending goes on by "
        "itself when it is back. Check that it runs, and AMQP_URL."
    ),
    "BrokerBlocked": _(
        "The broker blocks its producers: it is short of memory or disk. Free some; sending goes on by "
        "itself. Nothing counts towards dead."
    ),
    "NoFreeChannels": _(
        "The connection has no channel left: too many destinations at once. Raise the broker's channel_max."
    ),
    "ChannelClosed": _(
        "The broker closed the channel. Its log says why; the message is tried again by itself."
    ),
    "no_owner": _(
        "No running dispatcher has this part of the queue. If one has just stopped, another takes over "
        "within LEASE + HEARTBEAT. If none runs, start one: manage.py outbox_dispatch."
    ),
    "held": _(
        "An earlier message of the same key is dead, and order is kept. Open it: retry it, mark it as "
        "dispatched or discard it, and this one goes on."
    ),
    "behind": _(
        "Messages of one key go out one after the other. This one goes as soon as those before it are "
        "confirmed."
    ),
    "destination": _(
        "Messages like it came back or were refused, one like the other, so they are not sent in vain. As soon as "
        "one of them is taken, all go on by themselves. Mend the destination; Retry tries this one at once."
    ),
    "at_a_consumer": _(
        "Mend the cause, then redispatch: the message goes to its consumers once more with the same id. The one that "
        "gave up tries it again; those that have done it ignore the copy."
    ),
    "tried_at_a_consumer": _(
        "Mend the cause; the consumer's next try then succeeds by itself. A redispatch would not hasten it: while the "
        "consumer still tries, it ignores a copy."
    ),
    "waits_at_a_consumer": _(
        "This consumer keeps the order of each key. As soon as the earlier message is done there, this one follows by "
        "itself; a copy would be ignored."
    ),
    "in_flight": _(
        "It was handed to the broker and the confirm is awaited. Acts are refused until that is known."
    ),
}

OTHER = _(
    "This error has no advice of its own. Read its text, correct the cause, then retry; if the "
    "message is of no use any more, discard it."
)


def advice_for(error_class: str) -> str:
    """The paragraph for an error class or a kind of waiting; a general one for an error that has none of its own."""
    if error_class in ADVICE:
        return str(ADVICE[error_class])
    return str(OTHER) if error_class[:1].isupper() else ""
