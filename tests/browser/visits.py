"""People in front of the dashboard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group, User
from playwright.sync_api import Page

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
GROUPS = {
    "operator": ("Outboard operators", "Outboard auditors"),
    "viewer": ("Outboard viewers",),
    "auditor": ("Outboard auditors",),
    "stranger": (),
}


def person(name: str) -> User:
    """A user whose password is the name, in the groups of `GROUPS`."""
    from outbox_core import provision

    provision.after_migrate()  # a flush between two tests removes groups and permissions
    user, made = User.objects.get_or_create(username=name)
    if made:  # a new password would end the sessions that the user has
        user.set_password(name)
        user.save()
    user.groups.set(Group.objects.filter(name__in=GROUPS[name]))
    return user


def sign_in(page: Page, site: str, name: str, path: str = "/") -> Page:
    """Sign in as a person through the login page, and go to a path."""
    person(name)
    page.goto(f"{site}/accounts/login/?next={path}")
    page.fill("[name=username]", name)
    page.fill("[name=password]", name)
    page.click("main button")
    page.wait_for_url(f"{site}{path}")
    return page


def live(page: Page) -> Page:
    """Wait until the page's socket is open and the first look that follows it is shown."""
    page.wait_for_selector("body[data-live=live]")
    page.wait_for_selector("#lag:not(:empty)", state="attached")
    return page


def picture(page: Page, name: str) -> None:
    """With SCREENSHOTS=1, keep a picture for the README in both themes."""
    if os.environ.get("SCREENSHOTS") != "1":
        return
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.evaluate("scrollTo(0, 0)")
    page.set_viewport_size({"width": 1360, "height": 900})
    for theme, ending in (("light", ""), ("dark", "-dark")):
        page.emulate_media(color_scheme=theme)
        page.screenshot(path=PICTURES / f"{name}{ending}.png", caret="initial")  # hiding it breaks the policy
    page.emulate_media(color_scheme="light")


def act(page: Page, verb: str, reason: str) -> Any:
    """Press a verb's button, give a reason in its dialog and confirm; returns the answer to the POST."""
    page.click(f"[data-verb={verb}]:visible")
    page.wait_for_selector("dialog#operation[open]")
    page.fill("dialog#operation [name=reason]", reason)
    with page.expect_response(lambda r: r.request.method == "POST") as answer:
        page.click("dialog#operation [type=submit]")
    return answer.value
