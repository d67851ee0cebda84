"""Why a message is where it is, in a sentence, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import at_consumers, wording
from dashboard.advice import advice_for
from dashboard.reasons import Why, capped, first_line
from outbox_core import envelope
from outbox_core.conf import settings
from outbox_core.models import Message
from outbox_core.operations.inspect import ConsumerState, Standing, Wait

FINAL = ("dead", "marked", "discarded", "dispatched")


def why(
    message: Message, standing: Standing, now: datetime, behind: int = 0, consumers: Sequence[ConsumerState] = ()
) -> Why:  # fmt: skip
    """The why line of one message. `behind` is how many later ones of its key wait for it, `consumers` what became of
    it at each of them."""
    match standing.state:
        case "dead":
            return _dead(message, standing, behind)
        case "marked" | "discarded":
            return _set_aside_by_hand(standing)
        case "dispatched":
            unfinished = at_consumers.worst(consumers)
            return at_consumers.why(unfinished, now) if unfinished else _dispatched(standing)
    return _waiting(message, standing, now)


def brief(
    message: Message, standing: Standing, now: datetime, unfinished: ConsumerState | None = None
) -> str:
    """The last error or what it waits for, as short as a cell of a list. `unfinished`: the consumer that has not done
    it."""
    if standing.parked and standing.state == "dead":
        return standing.parked.error or standing.parked.error_class
    if standing.state == "dispatched" and unfinished:
        return at_consumers.brief(unfinished)
    if standing.state in FINAL:
        return _("no queue was bound") if standing.last_dispatch and standing.last_dispatch.returned else ""
    error = standing.pending.last_error if standing.pending else ""
    return "; ".join(text for text in (_short_wait(standing.waits, now), error) if text)


def last_error(standing: Standing) -> str:
    """The error that the message's queue row keeps; empty if it has none."""
    if standing.pending:
        return standing.pending.last_error
    return standing.parked.error if standing.parked else ""


def _dead(message: Message, standing: Standing, behind: int) -> Why:
    parked = standing.parked
    assert parked is not None
    times = (
        ngettext("Gave up after %d failure", "Gave up after %d failures", parked.failures) % parked.failures
    )
    reason = _reason(message, parked.error_class, parked.error)
    text = _("%(times)s: %(reason)s It will not be sent again unless someone retries it.") % {
        "times": times,
        "reason": reason,
    }
    return Why("bad", text, _held(message, parked.holds, behind), advice_for(parked.error_class))


def _held(message: Message, holds: bool, behind: int) -> str:
    if not holds:
        return ""
    if not behind:
        return _("Later messages of key %s would wait behind it.") % message.key
    text = ngettext(
        "%(n)s later message of key %(key)s waits behind it.",
        "%(n)s later messages of key %(key)s wait behind it.",
        behind,
    )
    return text % {"n": capped(behind), "key": message.key}


def _set_aside_by_hand(standing: Standing) -> Why:
    by = standing.last_operation
    what = {
        "marked": _("Marked as dispatched: it counts as delivered and is not sent."),
        "discarded": _("Discarded: it is not sent."),
    }[standing.state]
    if by is None:
        return Why("info", what)
    return Why("info", what, _('By %(actor)s: "%(reason)s"') % {"actor": by.actor, "reason": by.reason})


def _dispatched(standing: Standing) -> Why:
    last = standing.last_dispatch
    if last is None:
        return Why("info", _("Dispatched; the record of it was pruned."))
    if last.returned:
        text = _("Sent, but no queue was bound: the broker took it and no one received it.")
        return Why("warn", text, advice=advice_for("Unroutable"))
    text = _("Dispatched: the broker confirmed attempt %(attempt)d to %(worker)s.") % {
        "attempt": last.attempt, "worker": last.worker,
    }  # fmt: skip
    return Why("ok", text)


def _waiting(message: Message, standing: Standing, now: datetime) -> Why:
    row, waits = standing.pending, standing.waits
    assert row is not None
    text = _wait_text(waits, now, message)
    detail = ""
    if row.failures:
        times = ngettext("Failed %(n)d time of %(most)d", "Failed %(n)d times of %(most)d", row.failures)
        failed = times % {"n": row.failures, "most": settings.MAX_ATTEMPTS}
        text = f"{failed}: {_reason(message, row.error_class, row.last_error)} {text}"
    elif row.last_error:
        detail = _(
            "Last: %s. This does not count towards dead: the message is not at fault."
        ) % row.last_error.rstrip(".")
    level = (
        "bad"
        if waits.kind in ("no_owner", "held", "destination")
        else "warn"
        if row.failures or row.last_error
        else "info"
    )
    advice = advice_for(row.error_class) if row.error_class else advice_for(waits.kind)
    link = waits.by if waits.kind in ("behind", "held") else ""
    return Why(level, text, detail, advice, link)


def _wait_text(waits: Wait, now: datetime, message: Message | None = None) -> str:
    left = wording.duration(max(0.0, (waits.until - now).total_seconds())) if waits.until else ""
    since = wording.duration(max(0.0, (now - waits.since).total_seconds())) if waits.since else ""
    key = message.key if message else ""
    match waits.kind:
        case "due":
            return _("Due: the next turn of its dispatcher sends it.")
        case "scheduled":
            return _("Delayed by its producer: due in %s.") % left
        case "backoff":
            return _("The next try is in %s.") % left
        case "direct":
            return _("Its producer is sending it directly; a dispatcher takes over in %s.") % left
        case "in_flight":
            return _("Being sent by %(worker)s since %(since)s ago.") % {
                "worker": waits.by,
                "since": since or "0 s",
            }
        case "destination":
            return _("Its destination takes nothing at the moment: one message is tried at a time.")
        case "behind":
            return _behind(waits.earlier, key)
        case "held":
            return _("Held back by a dead message of its key%(key)s, for %(since)s.") % {
                "key": f" {key}" if key else "",
                "since": since,
            }
        case "no_owner" if waits.by:
            return _("No live dispatcher owns its partition: %(worker)s was the last, %(since)s ago.") % {
                "worker": waits.by,
                "since": since,
            }
        case "no_owner":
            return _("No dispatcher owns its partition.")
    return ""


def _short_wait(waits: Wait, now: datetime) -> str:
    left = wording.duration(max(0.0, (waits.until - now).total_seconds())) if waits.until else ""
    match waits.kind:
        case "due":
            return _("due now")
        case "scheduled":
            return _("delayed, due in %s") % left
        case "backoff":
            return _("next try in %s") % left
        case "direct":
            return _("its producer is sending it")
        case "in_flight":
            return _("being sent by %s") % waits.by
        case "destination":
            return _("waits for its destination")
        case "behind":
            return ngettext(
                "behind %s earlier one of its key", "behind %s earlier ones of its key", waits.earlier
            ) % capped(waits.earlier)
        case "held":
            return _("held back by a dead one of its key")
        case "no_owner":
            return _("no dispatcher owns its partition")
    return ""


def _behind(earlier: int, key: str) -> str:
    text = ngettext(
        "Waits for %(n)s earlier message of its key%(key)s.",
        "Waits for %(n)s earlier messages of its key%(key)s.",
        earlier,
    )
    return text % {"n": capped(earlier), "key": f" {key}" if key else ""}


def _reason(message: Message, error_class: str, error: str) -> str:
    exchange, routing_key = envelope.route(message.destination, message.type)
    if error_class == "Unroutable":
        return _("the broker returned it, since no queue is bound to “%(key)s” on exchange “%(exchange)s”.") % {
            "key": routing_key, "exchange": exchange,
        }  # fmt: skip
    text = first_line(error) or error_class or _("unknown")
    if error_class and error_class not in text:
        text = f"{error_class}: {text}"
    return text if text.endswith(".") else f"{text}."
