"""The Django admin as the place for audits: every model, read-only; the acts go through the verbs.

Lists never count or sort a big table: the newest rows by primary key, a capped count, filters that an index serves.
"""

from outbox_core.admin import audit, inbox, outbox, workers

__all__ = ["audit", "inbox", "outbox", "workers"]
