"""ASGI: the pages and the live socket."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.project.settings")
pages = get_asgi_application()

from channels.routing import ProtocolTypeRouter  # noqa: E402

from dashboard.routing import sockets  # noqa: E402

application = ProtocolTypeRouter({"http": pages, "websocket": sockets})
