"""The quickstart trains a real network on one process and on many; its cells assert the accuracy."""

from __future__ import annotations

import pytest

from tests.kernel import ROOT
from tests.notebooks.test_run import run

QUICKSTART = ROOT / "notebooks" / "quickstart.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_processes", [1, 4])  # on two: `make demo`
def test_it_runs_from_top_to_bottom(num_processes: int, tmp_path) -> None:
    copy = tmp_path / f"quickstart-{num_processes}.ipynb"
    copy.write_bytes(QUICKSTART.read_bytes())
    status, stdout, stderr = run(copy, f"NUM_PROCESSES={num_processes}")
    for file in (ROOT / "build" / "notebooks").glob(f"{copy.stem}*"):
        file.unlink()
    assert status == 0, stderr
    assert f"nbaccel: {num_processes} process" in stdout
    assert "360 held-out images" in stdout
    assert stdout.count("epoch 10 ") == 1  # the main rank's line, once
