"""URLs of the standalone project: the dashboard at the root, the admin, the login."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
