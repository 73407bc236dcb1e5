"""Fixtures of the widgets' tests."""

from __future__ import annotations

from tests.widgets.forms import gpus, home, new_form  # noqa: F401  # fixtures
