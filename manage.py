#!/usr/bin/env python
"""Django's command line for the standalone and demo project."""

import os
import sys


def main() -> None:
    """Run a command, with the demo project's settings unless others are named."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.project.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from environs import EnvError

    try:
        execute_from_command_line(sys.argv)
    except (EnvError, ImproperlyConfigured) as error:
        sys.exit(f"The environment is wrong: {error}")


if __name__ == "__main__":
    main()
