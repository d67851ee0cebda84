"""Who may do what. Every page, act and socket asks here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, PermissionsMixin
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from dashboard.answers import error, is_htmx, wants_json
from dashboard.middleware import with_headers

VIEW, OPERATE, REVEAL, AUDIT = "view_message", "operate_message", "reveal_payload", "view_operation"

View = Callable[..., HttpResponse]
User = AbstractBaseUser | AnonymousUser | PermissionsMixin


def allows(user: Any, permission: str) -> bool:
    """Does this user hold the permission (a codename of `outbox_core`)?"""
    return bool(user.is_authenticated and user.has_perm(f"outbox_core.{permission}"))


def requires(permission: str) -> Callable[[View], View]:
    """A view that answers only who holds the permission.

    Anonymous: a page redirects to the login, JSON and fragments get 401. Without the permission: 403, which names it.
    """

    def decorate(view: View) -> View:
        @with_headers
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not request.user.is_authenticated:
                return sign_in(request)
            if not allows(request.user, permission):
                return denied(request, permission)
            return view(request, *args, **kwargs)

        return guarded

    return decorate


def sign_in(request: HttpRequest) -> HttpResponse:
    """What an anonymous visitor gets: the way to the login, or 401 where a program or a fragment asks."""
    if wants_json(request) or is_htmx(request):
        return error(request, 401, _("Sign in first."), detail=_("This needs a signed-in user."))
    return redirect_to_login(request.get_full_path())


def denied(request: HttpRequest, permission: str) -> HttpResponse:
    """403, naming the permission that is missing."""
    name = f"outbox_core.{permission}"
    return error(
        request, 403, _("You may not see this."), permission=name,
        detail=_("It needs the permission %(name)s. Someone who manages users can grant it.") % {"name": name},
    )  # fmt: skip
