"""The one thing that pyproject.toml cannot say: templates/ and static/ of the checkout become part of `dashboard`."""

from setuptools import find_packages, setup

TOP_LEVEL = ("templates", "static")

setup(
    packages=[*find_packages(include=["outbox_core*", "dashboard*"]), *(f"dashboard.{n}" for n in TOP_LEVEL)],
    package_dir={f"dashboard.{name}": name for name in TOP_LEVEL},
    package_data={f"dashboard.{name}": ["**/*"] for name in TOP_LEVEL}
    | {"outbox_core": ["py.typed", "templates/**/*"], "dashboard": ["py.typed"]},
)
