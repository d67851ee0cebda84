"""The probes, which say nothing but a status, and the metrics."""

from __future__ import annotations

import hmac

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.filters import store
from dashboard.middleware import with_headers
from outbox_core.operations import health, stats

STATES = ("pending", "retrying", "dead", "marked", "discarded", "scheduled")


@with_headers
@require_safe
def live(request: HttpRequest) -> HttpResponse:
    """200: the process answers."""
    return HttpResponse("ok\n", content_type="text/plain")


@with_headers
@require_safe
def ready(request: HttpRequest) -> HttpResponse:
    """200 if the database answers and is migrated, else 503."""
    well = health.ready(store())
    return HttpResponse(
        "ok\n" if well else "not ready\n", status=200 if well else 503, content_type="text/plain"
    )


@with_headers
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Gauges and counters in the Prometheus text format, for who has METRICS_TOKEN; 404 for everyone else."""
    token = getattr(settings, "METRICS_TOKEN", "")
    given = request.headers.get("Authorization", "")
    if not token or not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        return HttpResponse("Not found\n", status=404, content_type="text/plain")
    return HttpResponse(
        exposition(stats.status(store())), content_type="text/plain; version=0.0.4; charset=utf-8"
    )


def exposition(status: dict) -> str:  # type: ignore[type-arg]
    """`operations.stats.status` as Prometheus text."""
    lines = ["# HELP outbox_messages Messages by state.", "# TYPE outbox_messages gauge"]
    lines += [f'outbox_messages{{state="{state}"}} {status[state]}' for state in STATES]
    lines += [
        "# HELP outbox_consumer_messages Messages that consumers have not done.",
        "# TYPE outbox_consumer_messages gauge",
    ]
    lines += [
        f'outbox_consumer_messages{{state="{state}"}} {status[f"consumers_{state}"]}'
        for state in ("retrying", "dead")
    ]
    for name, kind, help_, value in (
        ("outbox_dispatched_total", "counter", "Confirmed sends.", status["dispatched"]),
        ("outbox_duplicates_total", "counter", "Duplicates that were seen.", status["duplicates"]),
        (
            "outbox_oldest_pending_seconds",
            "gauge",
            "How long the oldest due message has waited.",
            status["oldest_pending_seconds"],
        ),
    ):
        lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}", f"{name} {value}"]
    lines += [
        "# HELP outbox_worker_heartbeat_age_seconds Since a worker's last sign of life.",
        "# TYPE outbox_worker_heartbeat_age_seconds gauge",
    ]
    for w in status["workers"]:
        lines.append(
            f'outbox_worker_heartbeat_age_seconds{{kind="{_label(w["kind"])}",name="{_label(w["name"])}"}} '
            f"{w['heartbeat_age_seconds']}"
        )
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
