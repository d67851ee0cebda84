"""The demo's page and its acts. Not part of what another project includes."""

from django.urls import path

from dashboard.demo import views

app_name = "demo"

urlpatterns = [
    path("", views.demo, name="demo"),
    *[path(f"{name}/", views.act, {"name": name}, name=name) for name in views.ACTS],
]
