"""Every test of the configuration starts with nothing configured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nbaccel import config


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty home, no variables, no session; returns the home."""
    for each in config.SETTINGS.values():
        monkeypatch.delenv(each.variable, raising=False)
    monkeypatch.delenv("NBACCEL_CONFIG_FILE", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    yield home
    config.set_session_values({})
