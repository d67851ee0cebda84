"""Both packages install into another project, with their templates and static files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pair("embedded")  # a wheel is the same on both

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("outbox_core", "dashboard", "templates", "static")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")

PUBLISH = """
from types import SimpleNamespace
product = SimpleNamespace(save=lambda: None)
"""
VISIT = """
import asyncio
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import Group, User
from django.test import Client
from mysite.asgi import application

user = User.objects.create_user("ana", password="ana")
user.groups.add(Group.objects.get(name="Outboard operators"))
anonymous, client = Client(HTTP_HOST="localhost"), Client(HTTP_HOST="localhost")
sign_in = anonymous.get("/outbox/")
print(sign_in.status_code, sign_in["Location"], anonymous.get("/accounts/login/").status_code)
client.force_login(user)
for page in ("", "messages/", "duplicates/", "workers/"):
    whole = client.get("/outbox/" + page)
    part = client.get("/outbox/" + page, headers={"HX-Request": "true"})
    print(page, whole.status_code, b"<html" in whole.content, part.status_code, b"<html" in part.content)
for page in ("", "messages/?state=nonsense", "-/ready"):
    answer = client.get("/outbox/" + page)
    policy = answer.get("Content-Security-Policy", "")
    print([answer.get(name, "") for name in ("Vary", "Cache-Control")], "script-src" in policy)
client.logout()
print(client.post("/accounts/login/", {"username": "ana", "password": "ana"})["Location"])
client.force_login(user)

async def open_socket():
    cookie = f"sessionid={client.cookies['sessionid'].value}".encode()
    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost"), (b"cookie", cookie)]
    socket = WebsocketCommunicator(application, "/ws/live/", headers)
    print("socket", (await socket.connect())[0], "tick" in await socket.receive_from(5))
    await socket.disconnect()

asyncio.run(open_socket())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("installation")
    source, wheels, target = folder / "source", folder / "wheels", folder / "site"
    source.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("outboard-*.whl")
    install = [*pip, "install", "--no-deps", "--target", str(target), str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def readme() -> list[str]:
    """The Python of the README's section for other projects, in its order."""
    text = (ROOT / "README.md").read_text().partition("## In your project")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def project(installed: Path) -> Path:
    """A fresh project elsewhere, to which was added what the README says; the packages are only where they were
    installed."""
    settings, sqlite, urls, asgi, publishing, receiving = readme()
    folder = installed.parent / "project"
    folder.mkdir()
    django(folder, "startproject", "mysite", ".")
    django(folder, "startapp", "shop")
    for name, text in (
        ("settings", 'INSTALLED_APPS += ["shop"]\n' + settings + sqlite),
        ("urls", urls),
        ("asgi", asgi),
    ):
        with (folder / "mysite" / f"{name}.py").open("a") as file:
            file.write(text)
    (folder / "shop" / "handlers.py").write_text(receiving)
    (folder / "publish.py").write_text(PUBLISH + publishing)
    return folder


def manage(project: Path, *arguments: str) -> str:
    """Run a command of the fresh project; its output."""
    return django(project, *arguments, DJANGO_SETTINGS_MODULE="mysite.settings")


def django(project: Path, *arguments: str, **env: str) -> str:
    """Run `django-admin` in a folder that finds the packages where they were installed; its output."""
    env |= {"PATH": os.environ["PATH"], "PYTHONPATH": f"{project}:{project.parent / 'site'}"}
    command = [sys.executable, "-m", "django", *arguments]
    done = subprocess.run(command, env=env, cwd=project, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_every_template_and_static_file(installed):
    for name in ("templates", "static"):
        here = {p.relative_to(ROOT / name) for p in (ROOT / name).rglob("*") if p.is_file()}
        there = installed / "dashboard" / name
        assert here
        assert {p.relative_to(there) for p in there.rglob("*") if p.is_file() and p.suffix != ".pyc"} == here


def test_the_wheel_holds_every_module_and_nothing_of_the_tests(installed):
    for package in ("outbox_core", "dashboard"):
        here = {p.relative_to(ROOT) for p in (ROOT / package).rglob("*.py")}
        assert {path for path in here if not (installed / path).is_file()} == set()
    assert not (installed / "tests").exists()


def test_a_fresh_project_checks_migrates_publishes_and_receives(project):
    assert "no issues" in manage(project, "check")
    manage(project, "migrate", "--verbosity", "0")
    manage(project, "shell", "--no-imports", "-c", (project / "publish.py").read_text())
    manage(project, "outbox_topology", "--apply")
    assert "1" in manage(project, "outbox_dispatch", "--once")
    assert "25.00" in manage(project, "outbox_consume", "--once")


def test_a_fresh_project_serves_the_pages_and_their_socket(project):
    manage(project, "migrate", "--verbosity", "0")
    told = manage(project, "shell", "--no-imports", "-c", VISIT).splitlines()
    assert told[0] == "302 /accounts/login/?next=/outbox/ 200"
    assert told[1:] == [
        " 200 True 200 False",
        "messages/ 200 True 200 False",
        "duplicates/ 200 True 200 False",
        "workers/ 200 True 200 False",
        *3 * ["['Accept, HX-Request, Cookie', 'no-store'] True"],
        "/outbox/",
        "socket True True",
    ]


def test_a_fresh_project_finds_the_dashboards_files(project):
    found = manage(project, "findstatic", "outboard/live.js", "--verbosity", "1")
    assert str(project.parent / "site") in found
    source = (
        "from django.template.loader import get_template; print(get_template('outboard/base.html').origin)"
    )
    assert str(project.parent / "site") in manage(project, "shell", "--no-imports", "-c", source)
