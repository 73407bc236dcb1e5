"""Importing the package touches nothing (B002)."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.kernel import ROOT, Kernel

LOOK = """
import json, os, sys, threading
environment = dict(os.environ)
import nbaccel
print(json.dumps({
    "torch": "torch" in sys.modules,
    "environment": dict(os.environ) == environment,
    "threads": threading.active_count(),
}))
from nbaccel import Accelerator, LaunchSpec, notebook_launcher
import torch
print(json.dumps({
    "cuda": torch.cuda.is_initialized(),
    "group": torch.distributed.is_initialized(),
    "environment": dict(os.environ) == environment,
    "threads": threading.active_count(),
    "children": len(__import__("psutil").Process().children()),
}))
"""


def test_B002_importing_touches_no_device_group_or_environment() -> None:
    command = [sys.executable, "-c", LOOK]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    package, names = map(json.loads, run.stdout.splitlines())
    assert package == {"torch": False, "environment": True, "threads": 1}
    # A plain script is no notebook: nothing is started ahead of the first launch.
    assert names == {"cuda": False, "group": False, "environment": True, "threads": 1, "children": 0}
    assert run.stderr == ""


def test_B002_in_a_kernel_the_import_leaves_environment_and_handlers_alone(fresh_kernel: Kernel) -> None:
    fresh_kernel.run(
        "import os, signal\n"
        "def state():\n"
        "    return dict(os.environ), [signal.getsignal(s) for s in signal.valid_signals()]\n"
        "before = state()\n"
        "from nbaccel import notebook_launcher\n"
        "after = state()"
    )
    result = fresh_kernel.run("import torch\nprint(before == after, torch.cuda.is_initialized())")
    assert (result.stdout, result.stderr) == ("True False\n", "")
