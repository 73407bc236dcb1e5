"""The harness that runs a function on ranks."""

from __future__ import annotations

import pytest

from tests import leaks
from tests.runtime.ranks import RankError, run_ranks


def test_an_error_is_told_and_leaves_no_descriptor_though_its_traceback_lives() -> None:
    def on_rank() -> None:
        raise ValueError("on purpose")

    with leaks.watch(grace_s=0.0), pytest.raises(RankError, match="ValueError: on purpose") as caught:
        run_ranks(on_rank, 2)
    assert caught.tb is not None
