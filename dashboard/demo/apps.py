"""The demo shop: catalog, basket and orders, as three services would be."""

from django.apps import AppConfig


class DemoConfig(AppConfig):
    """A small shop that publishes and consumes, so that the dashboard has something to show."""

    name = "dashboard.demo"
    label = "demo"
    verbose_name = "Demo shop"
    default_auto_field = "django.db.models.BigAutoField"
