"""The interactive notebook on one and two workers; its cells assert what they claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel import ROOT
from tests.notebooks.test_run import run

INTERACTIVE = ROOT / "notebooks" / "interactive.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_processes", [1, 2])
def test_it_runs_from_top_to_bottom(num_processes: int, tmp_path: Path) -> None:
    copy = tmp_path / f"interactive-{num_processes}.ipynb"
    copy.write_bytes(INTERACTIVE.read_bytes())
    status, stdout, stderr = run(copy, f"NUM_PROCESSES={num_processes}")
    for file in (ROOT / "build" / "notebooks").glob(f"{copy.stem}*"):
        file.unlink()
    assert status == 0, stderr
    assert stdout.count(f"nbaccel: {num_processes} process") == 1  # started once
    assert "as expected: train_epoch()" in stdout
    assert stdout.count("epoch 6: ") == 1
    assert "nbaccel: the workers have ended" in stdout
