"""What this machine has to compute on, found without opening a device.

Asking torch in the kernel could create a context there, and some releases of torch do so even when
they only count. So the question goes to a process of its own, once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

_PROBE = """
import json, torch
kind, count = "cpu", 0
for name in ("cuda", "xpu"):
    module = getattr(torch, name, None)
    if module is not None and module.is_available():
        kind, count = name, module.device_count()
        break
else:
    if torch.backends.mps.is_available():
        kind, count = "mps", 1
print(json.dumps([kind, count]))
"""
_PROBE_TIMEOUT = 60.0

# Names that decide what is visible; the answer holds as long as they do.
_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@dataclass(frozen=True)
class Accelerators:
    """The accelerators that torch would use here."""

    device_type: str
    """``cuda``, ``xpu``, ``mps``, or ``cpu`` for none."""

    count: int
    """How many are visible; 0 on a machine with a CPU only."""


_NONE = Accelerators("cpu", 0)
_cache: dict[tuple[str | None, ...], Accelerators] = {}


def visible_accelerators() -> Accelerators:
    """What ``cuda:0 ...`` would be in a fresh process with this environment.

    Raises:
        RuntimeError: the process that was asked didn't answer.
    """
    if not _built_for_accelerators():
        return _NONE
    key = tuple(os.environ.get(name) for name in _VISIBILITY)
    if key not in _cache:
        _cache[key] = _ask()
    return _cache[key]


def _built_for_accelerators() -> bool:
    import torch

    if sys.platform == "darwin":
        return bool(torch.backends.mps.is_built())
    return bool(torch.version.cuda or torch.version.hip or getattr(torch.version, "xpu", None))


def _ask() -> Accelerators:
    try:
        answer = subprocess.run(  # noqa: S603  # our own text
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"torch could not be asked for its devices: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"torch did not name its devices within {_PROBE_TIMEOUT:.0f} s; pass cpu=True to do without"
        ) from error
    kind, count = json.loads(answer.stdout.strip().splitlines()[-1])
    return Accelerators(kind, count)
