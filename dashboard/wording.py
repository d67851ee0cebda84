"""Numbers and durations as people read them."""

from __future__ import annotations

from datetime import timedelta

from django.utils.formats import number_format
from django.utils.translation import gettext as _


def duration(value: float | timedelta | None) -> str:
    """Seconds as at most two units: "340 ms", "4.2 s", "4 min 12 s", "3 d 2 h". Empty for None."""
    if value is None:
        return ""
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 1:
        return _("%d ms") % round(seconds * 1000)
    if seconds < 10:
        return _("%.1f s") % seconds
    whole = int(seconds)
    if whole < 60:
        return _("%d s") % whole
    if whole < 3600:
        return _two(_("%d min") % (whole // 60), whole % 60, _("%d s"))
    if whole < 86400:
        return _two(_("%d h") % (whole // 3600), whole % 3600 // 60, _("%d min"))
    return _two(_("%d d") % (whole // 86400), whole % 86400 // 3600, _("%d h"))


def _two(first: str, rest: int, unit: str) -> str:
    return f"{first} {unit % rest}" if rest else first


def compact(value: float | None) -> str:
    """A count in at most five characters where it is large: 1,204 and 18.4k and 3.1M."""
    if value is None:
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.1f}".rstrip("0").rstrip(".") + unit if scaled < 100 else f"{scaled:.0f}{unit}"
    return number_format(round(value), use_l10n=True, force_grouping=True)


def rate(value: float) -> str:
    """Messages per second."""
    return _("%s/s") % (
        compact(value) if value >= 10 or value == 0 else f"{value:.1f}".rstrip("0").rstrip(".")
    )


def size(octets: int) -> str:
    """Bytes in binary units."""
    if octets < 1024:
        return _("%d bytes") % octets
    if octets < 1024 * 1024:
        return _("%.1f KiB") % (octets / 1024)
    return _("%.1f MiB") % (octets / 1024 / 1024)
