"""The docs say what the code does: every setting, command, permission, dependency and promise."""

from __future__ import annotations

import re
import runpy
from importlib import metadata
from pathlib import Path

import pytest
from django.core.management import get_commands
from packaging.requirements import Requirement

from outbox_core.conf import SETTINGS
from outbox_core.provision import GROUPS

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
DEPLOYMENT = (ROOT / "docs/deployment.md").read_text()
SETTINGS_PAGE = (ROOT / "docs/settings.md").read_text()
OURS = ("outbox_core", "dashboard", "dashboard.demo")


def section(title: str) -> str:
    """The part of the README under a heading."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_settings_page_is_what_the_code_writes():
    assert runpy.run_path(str(ROOT / "docs/settings_page.py"))["page"]() == SETTINGS_PAGE, "run: make docs"


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_is_documented(key):
    assert f"| `{key}` |" in SETTINGS_PAGE


def test_every_environment_variable_of_the_project_is_documented():
    source = (ROOT / "dashboard/project/settings.py").read_text()
    read = set(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', source))
    assert "DATABASE_URL" in read
    assert {name for name in read if f"| `{name}` |" not in SETTINGS_PAGE} == set()


def test_every_command_is_documented():
    ours = {name for name, app in get_commands().items() if app in OURS}
    assert "outbox_dispatch" in ours
    assert {name for name in ours if f"`{name}" not in section("Commands")} == set()


def test_every_documented_command_exists():
    named = set(re.findall(r"`((?:outbox_|demo)\w*)", section("Commands")))
    assert named - set(get_commands()) == set()


def test_every_group_is_documented():
    assert [group for group in GROUPS if f"`{group}`" not in DEPLOYMENT] == []


def test_every_dependency_is_pinned_and_explained():
    for name, title in (
        ("requirements.txt", "What it stands on"),
        ("requirements-dev.txt", "What it stands on"),
    ):
        lines = (ROOT / name).read_text().splitlines()
        requirements = [Requirement(line) for line in lines if line and line[0] not in "#-"]
        assert requirements
        for requirement in requirements:
            assert str(requirement.specifier).startswith("=="), f"{requirement} is not pinned"
            assert re.search(rf"^\|.*\b{re.escape(requirement.name)}\b.*\|.+\|$", section(title), re.M), (
                requirement
            )


def test_what_is_installed_into_other_projects_allows_what_is_pinned_here():
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.M | re.S).group(1)
    for line in re.findall(r'"([^"]+)"', listed):
        requirement = Requirement(line)
        assert requirement.specifier.contains(metadata.version(requirement.name)), requirement


def test_every_promise_names_tests_that_exist():
    rows = re.findall(r"^\| \*\*.*\|$", section("Guarantees"), re.M)
    assert len(rows) >= 9
    for row in rows:
        paths = re.findall(r"\[[^\]]+\]\((tests/[^)]+)\)", row.split("|")[-2])
        assert paths, row
        assert [path for path in paths if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda p: p.name
)
def test_every_link_inside_the_docs_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []
