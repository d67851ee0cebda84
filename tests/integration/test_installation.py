"""Both packages install into another project, with their templates and static files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.pair("embedded")  # a wheel is the same on both

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("outbox_core", "dashboard", "templates", "static")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")

SETTINGS = """
SECRET_KEY = "fresh"
DEBUG = True
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "django.contrib.staticfiles", "channels", "django_htmx", "outbox_core", "dashboard",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
    "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages"]}}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"}}}
STATIC_URL = "static/"
USE_TZ = True
OUTBOX = {"AUDIT_KEY": "fresh"}
"""
URLS = """
from django.contrib import admin
from django.urls import include, path
urlpatterns = [path("admin/", admin.site.urls), path("messages-of-ours/", include("dashboard.urls"))]
"""
HANDLERS = """
from outbox_core import subscribe

@subscribe("shop.opened", consumer="doorbell")
def ring(message):
    print("ring", message.payload["at"], flush=True)
"""
PUBLISH = """
from django.db import transaction
from outbox_core import publish
with transaction.atomic():
    publish("shop.opened", {"at": "09:00"})
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


@pytest.fixture(scope="module")
def project(installed: Path) -> Path:
    """A fresh project elsewhere, which finds the packages only where they were installed."""
    folder = installed.parent / "project"
    shop = folder / "shop"
    shop.mkdir(parents=True)
    (shop / "__init__.py").touch()
    (shop / "settings.py").write_text(SETTINGS)
    (shop / "urls.py").write_text(URLS)
    (shop / "handlers.py").write_text(HANDLERS)
    return folder


def manage(project: Path, *arguments: str) -> str:
    """Run `django-admin` in the fresh project; its output."""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{project}:{project.parent / 'site'}",
        "DJANGO_SETTINGS_MODULE": "shop.settings",
    }
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
    manage(project, "shell", "--no-imports", "-c", PUBLISH)
    manage(project, "outbox_topology", "--apply")
    assert "1" in manage(project, "outbox_dispatch", "--once")
    assert "ring 09:00" in manage(project, "outbox_consume", "--once")


def test_a_fresh_project_finds_the_dashboards_files(project):
    found = manage(project, "findstatic", "outboard/live.js", "--verbosity", "1")
    assert str(project.parent / "site") in found
    source = (
        "from django.template.loader import get_template; print(get_template('outboard/base.html').origin)"
    )
    assert str(project.parent / "site") in manage(project, "shell", "--no-imports", "-c", source)
