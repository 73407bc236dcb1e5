"""The checks of ``check_gpu.py``, where there is a GPU; elsewhere their steps on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbaccel.launch import devices

SCRIPT = Path(__file__).with_name("check_gpu.py")
ROOT = SCRIPT.parents[2]


def _run(*options: str, timeout: float) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.timeout(240)
def test_on_gpus():
    found = devices.visible_accelerators()
    if found.device_type != "cuda":
        pytest.skip(f"no CUDA device: {found.reason or found.platform}")
    _run(timeout=200)


def test_the_steps_themselves_on_the_cpu():
    assert "9 of 9 ok" in _run("--dry-run", timeout=100)
