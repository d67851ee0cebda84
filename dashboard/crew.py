"""The workers and who owns which partition, as the pages show them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from dashboard import wording
from outbox_core.heartbeat import alive_for
from outbox_core.models import Partition, Worker
from outbox_core.operations import stats


@dataclass(frozen=True, slots=True)
class Hand:
    """A worker as people judge it: `level` ok, warn or bad, with a `note`; `mark` is its letter on the map."""

    worker: Worker
    level: str
    note: str
    silent: float
    mark: str = ""
    alive: bool = True  # else what it said of itself last is no longer true


@dataclass(frozen=True, slots=True)
class Crew:
    """Every worker, the live ones first and of these the dispatchers, and the owner of each partition as (name,
    index) for the map."""

    hands: list[Hand]
    owners: list[tuple[str, int | None]]

    @property
    def living(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.alive]

    @property
    def silent(self) -> list[Hand]:
        return [hand for hand in self.hands if not hand.alive]

    @property
    def unowned(self) -> int:
        return sum(index is None for _name, index in self.owners)


def crew(using: str, now: datetime) -> Crew:
    """Two queries."""
    leases = {
        p.number: p.lease for p in Partition.objects.using(using).select_related("lease")
        if p.lease_id is not None and p.lease is not None
    }  # fmt: skip
    names = sorted({lease.name for lease in leases.values()})
    index = {name: i for i, name in enumerate(names)}
    owners: list[tuple[str, int | None]] = []
    for number in range(64):
        lease = leases.get(number)
        live = lease is not None and lease.until > now
        owners.append((lease.name if lease else "", index[lease.name] if lease and live else None))
    workers = sorted(
        Worker.objects.using(using).all(), key=lambda w: (w.kind != "dispatcher", w.kind, w.name)
    )
    hands = [_judge(w, now, chr(65 + index[w.name] % 26) if w.name in index else "") for w in workers]
    return Crew(sorted(hands, key=lambda hand: not hand.alive), owners)


def _judge(worker: Worker, now: datetime, mark: str) -> Hand:
    silent = max(0.0, (now - worker.heartbeat).total_seconds())
    if silent > alive_for().total_seconds():
        return Hand(worker, "bad", _("silent for %s") % wording.duration(silent), silent, mark, False)
    if worker.broker in ("down", "blocked"):
        return Hand(worker, "bad", worker.broker_detail or _("broker %s") % worker.broker, silent, mark)
    if worker.broker == "connecting":
        return Hand(worker, "warn", worker.broker_detail or _("connecting to the broker"), silent, mark)
    if worker.problems:
        return Hand(worker, "warn", "; ".join(f"{k}: {v}" for k, v in worker.problems.items()), silent, mark)
    return (
        Hand(worker, "warn", _("asked to leave"), silent, mark)
        if worker.drain
        else Hand(worker, "ok", "", silent, mark)
    )


def as_json(hand: Hand) -> dict[str, object]:
    """A worker as the JSON list has it."""
    w = hand.worker
    return {
        **stats.worker(w, hand.silent), "started_at": w.started_at, "heartbeat": w.heartbeat,
        "broker_detail": w.broker_detail if hand.alive else "", "level": hand.level, "note": hand.note,
    }  # fmt: skip
