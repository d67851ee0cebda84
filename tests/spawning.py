"""What a spawned process needs in its environment to stand on the database, broker and settings of its test."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.db import connections


def environment(using: str = "default") -> dict[str, str]:
    """The test's surroundings: its database, its broker, and every key of `settings.OUTBOX`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OUTBOX_", "DJANGO_ALLOW_ASYNC"))}
    return {
        **kept,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "OUTBOARD_SPAWNED": "1",
        "PYTHONUNBUFFERED": "1",
        "DATABASE_URL": database_url(using),
        "AMQP_URL": settings.OUTBOX.get("AMQP_URL", ""),
        **{f"OUTBOX_{key}": text(value) for key, value in settings.OUTBOX.items()},
    }


def database_url(using: str = "default") -> str:
    """The URL of the database that the test's own connection uses."""
    config = connections[using].settings_dict
    if config["ENGINE"] == "django.db.backends.sqlite3":
        return f"sqlite:///{config['NAME']}"
    user = quote(config["USER"], safe="")
    password = ":" + quote(config["PASSWORD"], safe="") if config["PASSWORD"] else ""
    host = f"[{config['HOST']}]" if ":" in config["HOST"] else quote(config["HOST"], safe="")
    port = f":{config['PORT']}" if config["PORT"] else ""
    return f"postgres://{user}{password}@{host}{port}/{quote(config['NAME'], safe='')}"


def text(value: Any) -> str:
    """A setting as the environment holds it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)
