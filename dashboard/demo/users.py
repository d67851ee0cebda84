"""The demo's two users, whose passwords everyone knows: made only where nobody else can be."""

from __future__ import annotations

import ipaddress

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connections, transaction

USERS = {
    "operator": ("Outboard operators", "Outboard auditors"),
    "viewer": ("Outboard viewers",),
}
"""Each user (the password is the same word) and its groups."""


def is_local(using: str = "default") -> bool:
    """Whether the database is on this host: a SQLite file, a Unix socket or a loopback address. Connects to it."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        return True
    connection.ensure_connection()
    # What the connection itself says, since the host may also come from a service file or from PGHOST.
    info = connection.connection.info
    return is_loopback(info.hostaddr or info.host)


def is_loopback(address: str) -> bool:
    """Whether a database at this address or in this folder (of a Unix socket) is on this host."""
    if address.startswith(("/", "@")) or address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def make_users(using: str = "default") -> list[str]:
    """Create the users that are missing, in one transaction, and return their names.

    On a remote database, or where any other user exists, nothing is created.
    """
    users = get_user_model()._default_manager.using(using)
    if not is_local(using):
        return []
    made = []
    with transaction.atomic(using=using):
        if users.exclude(username__in=USERS).exists():
            return []
        for name, groups in USERS.items():
            user, created = users.get_or_create(username=name, defaults={"is_staff": name == "operator"})
            if created:
                user.set_password(name)
                user.save(using=using)
                user.groups.set(Group.objects.using(using).filter(name__in=groups))
                made.append(name)
    return made
