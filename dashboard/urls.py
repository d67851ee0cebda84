"""The dashboard's pages, for any project: `path("", include("dashboard.urls"))`."""

from django.urls import path

from dashboard import acts
from dashboard.views import audit, duplicates, health, message, messages, overview, workers
from dashboard.views.acts import act

app_name = "outboard"

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("messages/", messages.messages, name="messages"),
    path("messages/<uuid:message_id>/", message.message, name="message"),
    path("duplicates/", duplicates.duplicates, name="duplicates"),
    path("workers/", workers.workers, name="workers"),
    path("audit/", audit.audit, name="audit"),
    *[
        path(f"messages/<uuid:message_id>/{plural}/", act, {"plural": plural}, name=plural)
        for plural in acts.PLURALS
    ],
    path("-/live", health.live, name="live"),
    path("-/ready", health.ready, name="ready"),
    path("metrics", health.metrics, name="metrics"),
]
