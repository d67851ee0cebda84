"""The demo project's settings, on the servers of the pair that is tested (`PAIR=embedded|real`).

A process that a test spawns reads this file too: it finds the database and the broker of its test in the environment.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests import servers

SPAWNED = os.environ.get("OUTBOARD_SPAWNED") == "1"
PAIR = servers.pair()
MISSING_SERVER = ""

if not SPAWNED:
    for name in [n for n in os.environ if n.startswith("OUTBOX_")]:
        del os.environ[name]  # what a developer has set for the demo is not what is tested
    found = servers.find(PAIR)
    MISSING_SERVER = found.missing
    os.environ["DATABASE_URL"] = found.database_url
    os.environ["AMQP_URL"] = found.amqp_url
    os.environ.pop("DEBUG", None)
os.environ.setdefault("SECRET_KEY", "for-tests-only")
os.environ.setdefault("OUTBOX_AUDIT_KEY", "for-tests-only")

from dashboard.project.settings import *  # noqa: E402, F403
from dashboard.project.settings import DATABASES, INSTALLED_APPS, LOGGING  # noqa: E402

if not SPAWNED:
    DATABASES["default"]["TEST"] = {"NAME": servers.own_database_name(DATABASES["default"])}

INSTALLED_APPS += ["tests", *filter(None, os.environ.get("TEST_APPS", "").split(","))]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
STATIC_ROOT = Path(tempfile.gettempdir()) / "outboard-test-static"
LOGGING["root"]["level"] = os.environ.get("LOG_LEVEL", "INFO")
