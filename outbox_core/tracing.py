"""W3C Trace Context: the `traceparent` that ties a message to the request or message that caused it.

With `opentelemetry-api` installed it is that of the running span; else that of the message being handled.
Nothing here creates spans or sends anything anywhere. The format is W3C Trace Context, section 3.2.
"""

from __future__ import annotations

import re

from outbox_core import context

try:
    from opentelemetry import trace
except ImportError:  # an optional extra
    trace = None

_FORMAT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)


def valid(traceparent: str) -> bool:
    """Whether the text is a traceparent: version 00 exactly, a later version by its prefix, never ff or all zeros."""
    found = _FORMAT.fullmatch(traceparent) if len(traceparent) <= 255 else None
    if found is None:
        return False
    version, trace_id, parent_id, rest = found.groups()
    return (
        version != "ff"
        and (version != "00" or not rest)
        and bool(trace_id.strip("0") and parent_id.strip("0"))
    )


def current_traceparent() -> str:
    """The traceparent of what runs now, or "" if nothing is traced."""
    if trace is not None:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    incoming = context.current()
    return incoming.traceparent if incoming is not None and valid(incoming.traceparent) else ""
