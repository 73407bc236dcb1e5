"""Asking torch for its devices in a process that is thrown away.

Asking in the kernel could create a context there: some releases of torch do so even when they only
count. The process has the environment that workers would have, so it sees what they would see.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from nbaccel.launch.devices.model import Unit, Usage

_TIMEOUT = 60.0

# Its answer is the last line: what imports print comes before.
_PROGRAM = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    units = []
    if device_type == "mps":
        if torch.backends.mps.is_available():
            units.append({"name": "Apple GPU", "uuid": "", "memory": None, "capability": None})
    else:
        module = torch.get_device_module(device_type)
        is_nvidia = device_type == "cuda" and torch.version.hip is None
        for index in range(module.device_count() if module.is_available() else 0):
            properties = module.get_device_properties(index)
            free_total = module.mem_get_info(index) if want_memory else None
            units.append({
                "name": properties.name,
                "uuid": str(getattr(properties, "uuid", "")),
                "capability": [properties.major, properties.minor] if is_nvidia else None,
                "memory": free_total and [free_total[1] - free_total[0], free_total[1]],
            })
print(json.dumps({"units": units, "complaint": str(caught[-1].message) if caught else ""}))
"""


@dataclass(frozen=True)
class Answer:
    """What torch said."""

    units: tuple[Unit, ...]
    usage: tuple[Usage | None, ...]
    """One a unit; None where memory was not asked for or can't be told."""
    complaint: str
    """Its last warning, which tells why there is no device; often empty."""


def ask_torch(device_type: str, environ: Mapping[str, str], *, want_memory: bool) -> Answer:
    """Start a process, have torch name its devices, and wait for its end.

    Args:
        device_type: torch's name of the kind to ask for.
        environ: the whole environment of that process.
        want_memory: also tell the memory in use, which makes a context in that process.

    Raises:
        RuntimeError: it failed, or did not answer.
    """
    head = (
        f"import sys; sys.path[:] = {sys.path!r}; device_type = {device_type!r}; want_memory = {want_memory}"
    )
    try:
        done = subprocess.run(  # noqa: S603  # our own text
            [sys.executable, "-c", head + _PROGRAM],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise RuntimeError(
            f"torch could not name its {device_type} devices: {lines[-1]}; pass cpu=True to do without"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"torch did not name its {device_type} devices within {_TIMEOUT:.0f} s; "
            "pass cpu=True to do without"
        ) from error
    told = json.loads(done.stdout.strip().splitlines()[-1])
    units = told["units"]
    return Answer(
        tuple(
            Unit(index, unit["name"], unit["uuid"], _pair(unit["capability"]))
            for index, unit in enumerate(units)
        ),
        tuple(Usage(*unit["memory"]) if unit["memory"] else None for unit in units),
        told["complaint"],
    )


def _pair(numbers: list[int] | None) -> tuple[int, int] | None:
    return None if numbers is None else (numbers[0], numbers[1])
