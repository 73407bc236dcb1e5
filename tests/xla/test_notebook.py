"""The checklist for people with a TPU, rehearsed on the CPU client: real launches from a real kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import nbformat
import pytest

from tests.kernel import ROOT

NOTEBOOK = ROOT / "notebooks" / "tpu_check.ipynb"


@pytest.mark.timeout(400)
def test_the_checklist_passes_on_the_cpu_client(tmp_path):
    copy = tmp_path / "tpu_check.ipynb"
    copy.write_bytes(NOTEBOOK.read_bytes())
    done = subprocess.run(
        [sys.executable, str(ROOT / "notebooks" / "run.py"), str(copy)],
        env={**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    for file in (ROOT / "build" / "notebooks").glob(f"{copy.stem}*"):
        file.unlink()
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "18 of 18 ok on 1 core" in done.stdout
    assert "FAILED" not in done.stdout


def test_it_is_kept_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook.cells)
