"""Settings of the standalone and demo project. Everything that differs between places comes from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import environs
from django.core.exceptions import ImproperlyConfigured

from outbox_core.conf import SETTINGS

BASE_DIR = Path(__file__).resolve().parent.parent.parent
env = environs.Env()

DEBUG = env.bool("DEBUG", False)
SECRET_KEY = env.str("SECRET_KEY", "")
if not SECRET_KEY:
    if not DEBUG:
        raise ImproperlyConfigured("SECRET_KEY must be set unless DEBUG=1 (make run makes one).")
    SECRET_KEY = "insecure-because-debug-is-on"  # noqa: S105 -- DEBUG only

ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", ["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", [])
PORT = env.int("PORT", 8000)
METRICS_TOKEN = env.str("METRICS_TOKEN", "")
LOG_FORMAT = env.str("LOG_FORMAT", "text")

INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "servestatic",
    "django.contrib.staticfiles",
    "django_htmx",
    "channels",
    "outbox_core",
    "dashboard",
    "dashboard.demo",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "dashboard.middleware.AnswerHeaders",  # outside the others, whose redirects and refusals are answers too
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "dashboard.project.urls"
ASGI_APPLICATION = "dashboard.project.asgi.application"
WSGI_APPLICATION = "dashboard.project.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def database() -> dict[str, Any]:
    """The database that DATABASE_URL names, with what its kind needs to be shared by many processes."""
    config: dict[str, Any] = env.dj_db_url(
        "DATABASE_URL", f"sqlite:///{BASE_DIR / 'outboard.sqlite3'}", conn_max_age=0
    )
    if config["ENGINE"] == "django.db.backends.sqlite3":
        # A deferred transaction that reads first cannot wait for the write lock: it fails at once.
        config["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
    return config


DATABASES = {"default": database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
CSRF_FAILURE_VIEW = "dashboard.views.errors.csrf_failed"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"

LANGUAGE_CODE = "en"
TIME_ZONE = env.str("TIME_ZONE", "UTC")
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [BASE_DIR / "static"]
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_AUTOREFRESH = DEBUG

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"


def outbox() -> dict[str, Any]:
    """`OUTBOX`, with every key also from the environment as OUTBOX_<KEY>."""
    given: dict[str, Any] = {}
    read: dict[type, Any] = {bool: env.bool, int: env.int, list: env.list, dict: env.json}
    for key, setting in SETTINGS.items():
        kind = setting.kind[0] if isinstance(setting.kind, tuple) else setting.kind
        # int is the first of the two kinds of a number, and 2.5 s is a number too.
        reader = env.float if setting.kind == (int, float) else read.get(kind, env.str)
        value = reader(f"OUTBOX_{key}", None)
        if value is not None:
            given[key] = value
    given.setdefault("AMQP_URL", env.str("AMQP_URL", ""))
    if DEBUG:
        given.setdefault("AUDIT_KEY", SECRET_KEY)
    return given


OUTBOX = outbox()

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"},
        "json": {"()": "outbox_core.logs.JsonFormatter"},
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "pika": {"level": "CRITICAL"},  # it logs a traceback for every refused connection
        "daphne": {"level": "WARNING"},
        "django.channels.server": {"level": "WARNING"},
    },
}
