"""Every test of the runtime may use ranks."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _ranks(rank_server: None) -> None:
    """The server of the ranks is up before the first test."""
