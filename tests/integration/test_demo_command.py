"""`manage.py demo`: one command that runs everything, and ends it."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from collections.abc import Callable

import pytest
from django.contrib.auth import authenticate, get_user_model

from dashboard.demo.users import is_local, is_loopback, make_users
from outbox_core.models import Dispatch, Receipt
from tests.processes import Process, alive, child, children, free_port, wait_until

READY = re.compile(r"demo +\| Outboard is ready at (http://127\.0\.0\.1:\d+/)")
PROCESSES = ("consumer", "dispatcher", "web", "traffic")


@pytest.fixture
def demo(spawn: Callable[..., Process]) -> Callable[[], Process]:
    """Start the demo on a free port and wait until it is ready."""

    def start() -> Process:
        process = spawn("demo", env={"PORT": str(free_port())})
        wait_until(
            lambda: READY.search(process.output) or not process.running, timeout=60, what="the demo is ready"
        )
        assert process.running, process.output
        return process

    return start


@pytest.mark.django_db(transaction=True)
def test_the_demo_delivers_its_own_traffic_and_ends_on_sigterm(demo):
    process = demo()
    url = READY.search(process.output).group(1)
    with urllib.request.urlopen(url, timeout=5) as answer:  # to the login
        assert answer.status == 200
        assert answer.url.startswith(f"{url}accounts/login/")
    wait_until(lambda: Dispatch.objects.exists() and Receipt.objects.exists(), timeout=20)
    started = children(process.pid)
    assert len(started) == len(PROCESSES), process.output
    process.terminate()
    assert process.wait(timeout=14) == 0, process.output
    assert "killed" not in process.output
    assert not any(map(alive, started))


@pytest.mark.django_db(transaction=True)
def test_a_worker_of_the_demo_that_dies_is_started_again(demo):
    process = demo()
    dispatcher = wait_until(lambda: child(process.pid, "outbox_dispatch"))
    os.kill(dispatcher, signal.SIGKILL)
    wait_until(lambda: child(process.pid, "outbox_dispatch") not in (None, dispatcher), timeout=10)
    assert re.search(
        r"demo +\| dispatcher ended with signal SIGKILL; starting it again in 1 s", process.output
    )


@pytest.mark.django_db(transaction=True)
def test_nothing_of_the_demo_outlives_its_supervisor(demo):
    process = demo()
    started = wait_until(lambda: len(children(process.pid)) >= len(PROCESSES) and children(process.pid))
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, started)), timeout=12)


def test_a_taken_port_is_one_clear_line_and_exit_code_1(spawn):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = spawn("demo", env={"PORT": str(port)})
        assert process.wait() == 1
    assert process.output == (
        f"CommandError: Cannot listen on 127.0.0.1:{port}: Address already in use. Set PORT to a free port.\n"
    )


@pytest.mark.django_db
def test_the_demos_users_are_made_once_with_their_groups():
    assert make_users() == ["operator", "viewer"]
    assert make_users() == []
    operator, viewer = (
        authenticate(username="operator", password="operator"),
        authenticate(username="viewer", password="viewer"),
    )
    assert operator.is_staff
    assert operator.has_perms(
        ["outbox_core.view_message", "outbox_core.operate_message", "outbox_core.view_operation"]
    )
    assert not operator.is_superuser
    assert not viewer.is_staff
    assert viewer.get_all_permissions() == {"outbox_core.view_message"}


@pytest.mark.django_db
def test_no_demo_user_is_made_beside_another_user():
    users = get_user_model().objects
    users.create_user("ana")
    assert make_users() == []
    assert users.count() == 1


@pytest.mark.django_db
def test_no_demo_user_is_made_on_a_remote_database(monkeypatch):
    monkeypatch.setattr("dashboard.demo.users.is_local", lambda using: False)
    assert make_users() == []
    assert not get_user_model().objects.exists()


@pytest.mark.django_db
def test_the_test_database_is_local():
    assert is_local()


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("/var/run/postgresql", True),
        ("203.0.113.7", False),
        ("10.0.0.5", False),
        ("db.example.org", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_a_database_is_local_at_a_loopback_address_or_a_socket_only(address, local):
    assert is_loopback(address) == local
