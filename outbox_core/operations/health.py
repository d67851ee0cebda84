"""Is anything wrong: one sentence for a person who was woken up, and one answer for the probe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import Error
from django.db.models import Exists, OuterRef

from outbox_core.clock import database_now
from outbox_core.conf import settings
from outbox_core.heartbeat import alive_for
from outbox_core.inbox.registry import subscriptions
from outbox_core.models import Duplicate, Parked, Pending, Worker
from outbox_core.operations import roads, stats, undone
from outbox_core.operations.counting import CAP, capped
from outbox_core.operations.words import duration, gist, plural

WELL, BEHIND, NO_DISPATCHER = 0, 1, 2
NEWS = timedelta(hours=1)
AWAY = ("down", "blocked", "connecting")  # states of the road to the broker


@dataclass(frozen=True, slots=True)
class Verdict:
    """`level` ok, warn or bad; a sentence; what to know beyond it; the page that shows more; `--check`'s exit code."""

    level: str
    headline: str
    detail: str = ""
    link: str = ""  # workers, messages, failures, overview
    code: int = WELL


def verdict(using: str = "default") -> Verdict:
    """The worst thing that is true now. A few index probes, whatever the backlog."""
    now = database_now(using)
    workers = list(Worker.objects.using(using).order_by("-heartbeat"))
    dispatchers = [w for w in workers if w.kind == "dispatcher"]
    alive = [w for w in dispatchers if _alive(w, now)]
    due, aside = stats.waits(using)
    waits = max(due, aside)
    waiting = capped(Pending.objects.using(using).filter(scheduled=False).order_by())
    if not alive:
        return _no_dispatcher(dispatchers, now, waiting, waits)
    dead = capped(Parked.objects.using(using).filter(state="dead").order_by())
    # None of these follows from another, so the first of them names the others too.
    apart = [
        _dead(dead, using), _failing_road(using, now), _given_up(using), _tried_for_long(using, now),
        _differing(using, now),
    ]  # fmt: skip
    found = [
        _broker(alive, waiting, waits, now),
        _behind(waiting, due),
        *apart,
        _behind_another(aside),
        _some_broker(alive),
        _no_consumer(workers, now),
        _well(using, waiting, waits),
    ]
    told = [v for v in found if v is not None]
    worst = next((v for v in told if v.level == "bad"), told[0])
    others = [v.headline for v in apart if v is not None and v is not worst] if worst in apart else []
    return replace(worst, detail=" Also: ".join([worst.detail, *others]))


def _differing(using: str, now: datetime) -> Verdict | None:
    """An alarm for as long as it is news; the overview keeps it for the dedupe window."""
    n = capped(Duplicate.objects.using(using).filter(same_payload=False, at__gte=now - NEWS).order_by())
    if not n:
        return None
    headline = f"{plural(n, 'duplicate')} in the last hour came with another payload than the first copy."
    detail = "Only the first copy took effect: find out which of the two is right."
    return Verdict("warn", headline, detail, "overview")


def _alive(worker: Worker, now: datetime) -> bool:
    return now - worker.heartbeat <= alive_for()


def _count(waiting: int) -> str:
    return (
        f"more than {CAP:,} messages wait"
        if waiting > CAP
        else f"{plural(waiting, 'message')} {'waits' if waiting == 1 else 'wait'}"
    )


def _backlog(waiting: int, waits: float) -> str:
    if not waiting:
        return "Nothing waits at the moment."
    oldest = f", the oldest for {duration(waits)}" if waits else ""
    sentence = f"{_count(waiting)}{oldest}."
    return sentence[0].upper() + sentence[1:]


def _no_dispatcher(known: list[Worker], now: datetime, waiting: int, waits: float) -> Verdict:
    if known:
        last = known[0]
        headline = (
            f"Nothing is being delivered: no dispatcher has been heard from for "
            f"{duration((now - last.heartbeat).total_seconds())}."
        )
        detail = f"The last one was {last.name} on {last.host}, process {last.pid}. "
    else:
        headline = "Nothing is being delivered: no dispatcher is running."
        detail = ""
    detail += f"{_backlog(waiting, waits)} Nothing is lost. Start one: manage.py outbox_dispatch"
    return Verdict("bad", headline, detail, "workers", NO_DISPATCHER)


def _broker(alive: list[Worker], waiting: int, waits: float, now: datetime) -> Verdict | None:
    if not all(w.broker in AWAY for w in alive):
        return None
    worst = min(alive, key=lambda w: w.broker_since or now)
    since = worst.broker_since
    for_ = f" for {duration((now - since).total_seconds())}" if since else ""
    if worst.broker == "connecting" and since and (now - since).total_seconds() < settings.LEASE:
        return None  # it has only just started
    what = (
        f"The broker has not accepted messages{for_}: it blocks its producers."
        if worst.broker == "blocked"
        else f"The broker has not been reachable{for_}."
    )
    reason = f"{worst.broker_detail.rstrip('.')}. " if worst.broker_detail else ""
    detail = f"{reason}{_backlog(waiting, waits)} Nothing is lost, and none of it counts as a failure."
    return Verdict("bad", what, detail, "workers", BEHIND)


def _some_broker(alive: list[Worker]) -> Verdict | None:
    troubled = [w for w in alive if w.broker in ("down", "blocked")]
    if not troubled or len(troubled) == len(alive):
        return None
    one = troubled[0]
    state = "cannot reach the broker" if one.broker == "down" else "is blocked by the broker"
    return Verdict("warn", f"Dispatcher {one.name} {state}; others deliver.", one.broker_detail, "workers")


def _behind(waiting: int, waits: float) -> Verdict | None:
    if waits <= settings.BEHIND_AFTER:
        return None
    limit = duration(settings.BEHIND_AFTER)
    headline = f"Delivery is behind: the oldest message has waited {duration(waits)} (limit {limit})."
    return Verdict("bad", headline, f"{_count(waiting)[0].upper()}{_count(waiting)[1:]}.", "messages", BEHIND)


def _dead(dead: int, using: str) -> Verdict | None:
    if not dead:
        return None
    many = f"More than {CAP:,} messages" if dead > CAP else plural(dead, "message")
    headline = f"{many} could not be delivered and {'needs' if dead == 1 else 'need'} a decision."
    them = "it" if dead == 1 else "them"
    if _something_is_held(using):
        return Verdict(
            "bad", headline, f"Later messages of the same key wait behind {them}.", "failures", BEHIND
        )
    return Verdict("warn", headline, f"No other message waits behind {them}.", "failures", BEHIND)


def _something_is_held(using: str) -> bool:
    waiting = Pending.objects.using(using).filter(
        partition=OuterRef("partition"), key=OuterRef("key"), available_at__isnull=True
    )
    return Parked.objects.using(using).filter(Exists(waiting), holds=True).exists()


def _failing_road(using: str, now: datetime) -> Verdict | None:
    found = roads.failing(using)
    if not found:
        return None
    worst = max(found, key=lambda road: road.count)
    waits = max((now - road.since).total_seconds() if road.since else 0.0 for road in found)
    others = f" So do {plural(len(found) - 1, 'other destination')}." if found[1:] else ""
    headline = f"{worst.destination} takes no {worst.type}: {_count(worst.count)} for it."
    detail = f"{worst.why or 'One of them is tried at a time.'}{others} None of this counts as a failure."
    late = waits > settings.BEHIND_AFTER
    return Verdict("bad" if late else "warn", headline, detail, "messages", BEHIND if late else WELL)


def _given_up(using: str) -> Verdict | None:
    """It was delivered, but has had no effect."""
    dead = undone.count(using, *undone.GIVEN_UP)
    if not dead:
        return None
    many = f"More than {CAP:,} messages" if dead > CAP else plural(dead, "message")
    were, them = ("was", "it") if dead == 1 else ("were", "them")
    headline = f"{many} {were} delivered, but a consumer gave {them} up."
    behind = undone.count(using, "waiting")
    if behind:
        waiting = f"{_count(behind)[0].upper()}{_count(behind)[1:]}"
        return Verdict("bad", headline, f"{waiting} behind {them} at the consumer.", "overview", BEHIND)
    return Verdict("warn", headline, "Mend the cause, then redispatch.", "overview", BEHIND)


def _tried_for_long(using: str, now: datetime) -> Verdict | None:
    """A consumer is behind as the dispatcher is: by the same limit."""
    worst = undone.failing(using)
    if worst is None or (age := (now - worst.since).total_seconds()) <= settings.BEHIND_AFTER:
        return None
    limit = duration(settings.BEHIND_AFTER)
    headline = f"Consumer {worst.consumer} has failed at a message for {duration(age)} (limit {limit})."
    error = gist(worst.error)[0].rstrip(".")
    detail = f"{_tried(undone.count(using, *undone.TRIED))}: {error or 'no reason was given'}."
    return Verdict("warn", headline, detail, "overview", BEHIND)


def _tried(many: int) -> str:
    count = f"More than {CAP:,} messages are" if many > CAP else plural(many, "message is", "messages are")
    return f"{count} tried again at consumers"


def _behind_another(aside: float) -> Verdict | None:
    if aside <= settings.BEHIND_AFTER:
        return None
    headline = (
        f"Some keys are behind: a message has waited {duration(aside)} behind another of its key "
        f"(limit {duration(settings.BEHIND_AFTER)})."
    )
    detail = "The first message of such a key is failing, or many of it are queued."
    return Verdict("bad", headline, detail, "messages", BEHIND)


def _no_consumer(workers: list[Worker], now: datetime) -> Verdict | None:
    wanted = subscriptions()
    if not wanted or any(w.kind == "consumer" and _alive(w, now) for w in workers):
        return None
    headline = "Messages are sent, but none is handled here: no consumer is running."
    detail = f"Expected: {', '.join(sorted(wanted))}. Start them: manage.py outbox_consume"
    return Verdict("warn", headline, detail, "workers")


def _well(using: str, waiting: int, waits: float) -> Verdict:
    tried = undone.count(using, *undone.TRIED)
    detail = f"{_tried(tried)}." if tried else ""
    if not waiting:
        return Verdict("ok", "Everything is delivered.", detail, "overview" if tried else "")
    return Verdict("ok", f"Delivery is on time. {_backlog(waiting, waits)}", detail, "messages")


def ready(using: str = "default") -> bool:
    """Whether this process can serve: the database answers and its tables are there."""
    try:
        Worker.objects.using(using).values("pk").first()
    except Error:
        return False
    return True
