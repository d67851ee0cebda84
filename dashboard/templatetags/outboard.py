"""What the templates need: times, numbers, small charts, the navigation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import template
from django.conf import settings
from django.shortcuts import resolve_url
from django.template.context import Context
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as noop

from dashboard import permissions, series, summary, wording
from dashboard.reasons import first_line

register = template.Library()

register.filter("duration", wording.duration)
register.filter("compact", wording.compact)
register.filter("rate", wording.rate)
register.filter("size", wording.size)
register.filter("capped", summary.capped)
register.filter("first_line", first_line)
register.simple_tag(series.spark, name="spark")
register.simple_tag(series.partition_map, name="partition_map")
register.simple_tag(series.chart, name="chart")

SCRIPTS = ("times", "live", "list", "dialog", "keys")
"""The page's own modules, in this order. They know each other only by DOM events."""

PAGES = (
    ("overview", "view_message", noop("Overview")),
    ("messages", "view_message", noop("Messages")),
    ("failures", "view_message", noop("Failures")),
    ("duplicates", "view_message", noop("Duplicates")),
    ("inbox", "view_message", noop("Inbox")),
    ("workflows", "view_message", noop("Workflows")),
    ("workers", "view_message", noop("Workers")),
    ("audit", "view_operation", noop("Audit")),
    ("demo", "view_message", noop("Demo")),
)
"""The navigation. An entry shows if its page exists and the user may see it."""


@register.simple_tag
def scripts() -> SafeString:
    """htmx with its socket extension, both as django-htmx ships them, then our own modules.

    Not by django-htmx's own tag: with DEBUG it adds a script that puts error answers in place of the page.
    """
    vendored = ("django_htmx/htmx-2.min.js", "django_htmx/ext/hx-ws-2.min.js")
    own = [(static(f"outboard/{name}.js"),) for name in SCRIPTS]
    return format_html_join(
        "\n", '<script src="{}" defer></script>', [(static(p),) for p in vendored]
    ) + format_html_join("\n", '<script src="{}" type="module"></script>', own)


@register.simple_tag(takes_context=True)
def navigation(context: Context) -> list[dict[str, Any]]:
    """The pages that exist and that this user may see."""
    request = context["request"]
    found = []
    for name, permission, title in PAGES:
        try:
            url = reverse("demo:demo" if name == "demo" else f"outboard:{name}")
        except NoReverseMatch:
            continue
        if permissions.allows(request.user, permission):
            here = request.path == url or (
                url != reverse("outboard:overview") and request.path.startswith(url)
            )
            found.append({"url": url, "title": _(title), "here": here})
    return found


@register.simple_tag
def when(at: datetime | None) -> SafeString | str:
    """A time of day (a date before it, if it is not today); scripts put it into the viewer's zone."""
    if at is None:
        return "-"
    local = timezone.localtime(at)
    short = f"{local:%H:%M:%S}" if local.date() == timezone.localdate() else f"{local:%Y-%m-%d %H:%M}"
    return format_html(
        '<time datetime="{}" title="{}" data-when>{}</time>', at.isoformat(), f"{local:%Y-%m-%d %H:%M:%S.%f %Z}", short
    )  # fmt: skip


@register.simple_tag
def age(at: datetime | None) -> SafeString | str:
    """How long ago, or in how long; scripts let it tick."""
    if at is None:
        return "-"
    local = timezone.localtime(at)
    seconds = (timezone.now() - at).total_seconds()
    return format_html(
        '<time datetime="{}" title="{}" data-age>{}</time>', at.isoformat(), f"{local:%Y-%m-%d %H:%M:%S.%f %Z}",
        wording.duration(abs(seconds) if abs(seconds) >= 1 else round(abs(seconds), 1)),
    )  # fmt: skip


@register.simple_tag(takes_context=True)
def live(context: Context, id: str) -> SafeString:
    """The attributes of a part that is refreshed: its id, and how an answer to htmx replaces it."""
    if context.get("oob"):
        return format_html('id="{}" hx-swap-oob="true"', id)
    return format_html('id="{}"', id)


@register.simple_tag(takes_context=True)
def allowed(context: Context, permission: str) -> bool:
    """May this user do it?"""
    return permissions.allows(context["request"].user, permission)


@register.simple_tag(takes_context=True)
def link_with(context: Context, **changes: Any) -> str:
    """This page's address with some of its parameters changed (empty: removed)."""
    query = context["request"].GET.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value not in (None, ""):
            query[name] = str(value)
    return f"?{query.urlencode()}" if query else context["request"].path


@register.inclusion_tag("outboard/state.html")
def state(name: str, text: str = "") -> dict[str, str]:
    """A state as sign, word and colour."""
    return {"name": name, "text": text}


@register.simple_tag(takes_context=True)
def without(context: Context, name: str) -> str:
    """This page's address without one of its filters."""
    return link_with(context, **{name: None, "after": None, "before": None})


@register.simple_tag
def milliseconds() -> int:
    """The server's clock, for scripts to correct a wrong one on the viewer's side."""
    return int(timezone.now().timestamp() * 1000)


@register.filter
def words(text: str) -> list[str]:
    """A list written in a template."""
    return text.split()


@register.filter
def at(mapping: Mapping[str, Any], key: str) -> Any:
    """The value of a key that a template has in a variable."""
    return mapping[key]


@register.simple_tag
def sign_in_address() -> str:
    """Where this project signs people in."""
    return resolve_url(settings.LOGIN_URL)


@register.simple_tag
def sign_out_address() -> str:
    """Where this project signs people out; empty if it has no page named `logout`."""
    try:
        return reverse("logout")
    except NoReverseMatch:
        return ""
