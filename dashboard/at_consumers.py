"""What a consumer has not done of a message that the broker has: why, what helps, and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import wording
from dashboard.advice import advice_for
from dashboard.reasons import Why, first_line
from outbox_core.operations.inspect import ConsumerState
from outbox_core.operations.reception import WORST
from outbox_core.operations.undone import GIVEN_UP


def worst(consumers: Sequence[ConsumerState]) -> ConsumerState | None:
    """The consumer that most needs a person: one that gave up before one that waits or tries. None: all are done."""
    open_ = [c for c in consumers if c.state in WORST]
    return min(open_, key=lambda c: WORST.index(c.state), default=None)


def level(consumer: ConsumerState | None) -> str:
    """How loudly to say it: bad, warn, or nothing."""
    return "" if consumer is None else "bad" if consumer.state in GIVEN_UP else "warn"


def why(consumer: ConsumerState, now: datetime) -> Why:
    """The why line of a dispatched message that this consumer has not done."""
    words = {"consumer": consumer.consumer, "error": _said(consumer) or _("no reason was given")}
    match consumer.state:
        case "retrying":
            left = (consumer.until - now).total_seconds() if consumer.until else 0.0
            next_ = _("in %s") % wording.duration(left) if left > 0 else _("now")
            text = _("Dispatched; consumer %(consumer)s failed and tries again %(next)s: %(error)s")
            if not consumer.failures:
                text = _("Dispatched; consumer %(consumer)s runs it again %(next)s: %(error)s")
            return Why("warn", text % {**words, "next": next_}, advice=advice_for("tried_at_a_consumer"))
        case "waiting":
            text = _("Dispatched; at consumer %(consumer)s it waits for an earlier message of its key.")
            return Why("warn", text % words, advice=advice_for("waits_at_a_consumer"), link=consumer.behind)
        case "undecodable":
            text = _("Dispatched, but consumer %(consumer)s could not read it: %(error)s")
        case _:
            tries = ngettext("%d try", "%d tries", consumer.attempts) % consumer.attempts
            text = _("Dispatched, but consumer %(consumer)s gave up after %(tries)s: %(error)s")
            words["tries"] = tries
    return Why("bad", text % words, advice=advice_for("at_a_consumer"))


def brief(consumer: ConsumerState) -> str:
    """As short as a cell of a list."""
    error = _said(consumer)
    return f"{consumer.consumer}: {_(consumer.state)}" + (f", {error}" if error else "")


def refusal(verb: str, consumer: ConsumerState | None) -> str:
    """Why a verb for what was not sent yet does not help with a message that a consumer has not done."""
    if consumer is None or verb == "redispatch":
        return ""
    name = {"consumer": consumer.consumer}
    if consumer.state not in GIVEN_UP:
        return _("It was sent; consumer %(consumer)s goes on with it by itself.") % name
    return (
        _("It was sent, and consumer %(consumer)s gave it up: redispatch it once the cause is mended.") % name
    )


def _said(consumer: ConsumerState) -> str:
    return "" if consumer.state == "waiting" else first_line(consumer.detail)
