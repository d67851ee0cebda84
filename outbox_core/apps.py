"""The application: its handlers and workflows are discovered when Django is ready."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules


class OutboxCoreConfig(AppConfig):
    """Wires the engine into Django. Nothing here touches the database before a migration ran."""

    name = "outbox_core"
    verbose_name = "Outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from outbox_core import checks, provision  # noqa: F401

        post_migrate.connect(provision.after_migrate, sender=self)
        autodiscover_modules("handlers", "workflows")
