"""The web face: pages, live view and the demo shop."""

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    """The dashboard. It depends on `outbox_core`, never the reverse."""

    name = "dashboard"
    verbose_name = "Outboard dashboard"
