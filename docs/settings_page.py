"""`python docs/settings_page.py`: write docs/settings.md anew from the code. A test compares the two."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from outbox_core.conf import SETTINGS, Setting  # noqa: E402

PAGE = HERE / "settings.md"
ENVIRONMENT = {
    "DATABASE_URL": (
        "sqlite:///outboard.sqlite3",
        "the database: `postgres://user:password@host:5432/name` or a SQLite file",
    ),
    "AMQP_URL": (
        "",
        "the broker: `amqp://user:password@host:5672/vhost`; empty: the loopback broker in the database",
    ),
    "SECRET_KEY": ("", "Django's secret key; required unless DEBUG (`make run` makes one, in `.secret_key`)"),
    "DEBUG": ("0", "`1`: Django's debug pages; never in production"),
    "ALLOWED_HOSTS": ("127.0.0.1,localhost,[::1]", "host names that the web process answers to, with commas"),
    "CSRF_TRUSTED_ORIGINS": (
        "",
        "origins of forms behind a proxy, with scheme: `https://outboard.example.org`",
    ),
    "PORT": ("8000", "where `make run` listens on 127.0.0.1"),
    "TIME_ZONE": ("UTC", "the zone that pages show times in"),
    "METRICS_TOKEN": ("", "the bearer token of `/metrics`; empty: `/metrics` answers 404"),
    "LOG_FORMAT": ("text", "`json`: one object a line, with every extra field"),
}

HEAD = """\
# Settings

<!-- Written by docs/settings_page.py. Change outbox_core/conf.py, then run `make docs`. -->

In your own project, the settings are the keys of one dict in Django's settings:

```python
OUTBOX = {
    "AMQP_URL": "amqp://outbox@rabbit.internal/shop",
    "AUDIT_KEY": os.environ["OUTBOX_AUDIT_KEY"],
    "RETENTION": {"dispatched": 14},
}
```

In the standalone project each key is also read from the environment as `OUTBOX_<KEY>`: lists with commas, dicts as
JSON, booleans as `1` or `0`. `manage.py check` names an unknown key, with the nearest known one, and a wrong type.

## `OUTBOX`

| key | default | what it is |
|---|---|---|
"""

MIDDLE = """
## Environment of the standalone project

| variable | default | what it is |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return (
        HEAD
        + "".join(
            f"| `{key}` | {_code(setting.default)} | {_help(setting)} |\n"
            for key, setting in SETTINGS.items()
        )
        + MIDDLE
        + "".join(
            f"| `{name}` | {_code(default)} | {text} |\n" for name, (default, text) in ENVIRONMENT.items()
        )
    )


def _code(default: Any) -> str:
    if default == "":
        return "(empty)"
    return f"`{default}`" if isinstance(default, str) else f"`{default!r}`"


def _help(setting: Setting) -> str:
    choices = ", ".join(f"`{c}`" for c in setting.choices if c)
    least = f" (at least {setting.least:g})" if setting.least else ""
    return f"{setting.help}{f': {choices}' if choices else ''}{least}"


if __name__ == "__main__":
    PAGE.write_text(page())
