"""URLs of the standalone project: the dashboard at the root, the demo shop, the admin, the login."""

from django.contrib import admin
from django.contrib.auth import views as auth
from django.templatetags.static import static
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from dashboard.views.errors import not_found

handler403 = "dashboard.views.errors.forbidden"
handler404 = "dashboard.views.errors.not_found"
handler500 = "dashboard.views.errors.failed"

urlpatterns = [
    path("accounts/login/", auth.LoginView.as_view(), name="login"),
    path("accounts/logout/", auth.LogoutView.as_view(), name="logout"),
    path("admin/", admin.site.urls),
    path("favicon.ico", RedirectView.as_view(url=static("outboard/icon.svg"))),
    path("demo/", include("dashboard.demo.urls")),
    path("", include("dashboard.urls")),
    # With DEBUG too, a wrong address shows our page. Only what ends with a slash, so that a forgotten one is added.
    re_path(r"^.*/$", not_found),
]
