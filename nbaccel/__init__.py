"""nbaccel: PyTorch training from a notebook on everything the machine has.

Public names are loaded on first use: importing the package touches no device, reads no
configuration and changes nothing in ``os.environ``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

# name -> module that owns it. The one place where the public surface is listed.
_EXPORTS: dict[str, str] = {
    "Accelerator": "nbaccel.accelerator",
    "notebook_launcher": "nbaccel.launch.launcher",
    "debug_launcher": "nbaccel.launch.launcher",
    "last_failure": "nbaccel.launch.postmortem",
    "LaunchSpec": "nbaccel.config",
    "WorkerError": "nbaccel.errors",
    "WorkerDied": "nbaccel.errors",
    "LaunchTimeout": "nbaccel.errors",
}

if TYPE_CHECKING:
    from nbaccel.accelerator import Accelerator as Accelerator
    from nbaccel.config import LaunchSpec as LaunchSpec
    from nbaccel.errors import LaunchTimeout as LaunchTimeout
    from nbaccel.errors import WorkerDied as WorkerDied
    from nbaccel.errors import WorkerError as WorkerError
    from nbaccel.launch.launcher import debug_launcher as debug_launcher
    from nbaccel.launch.launcher import notebook_launcher as notebook_launcher
    from nbaccel.launch.postmortem import last_failure as last_failure

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'nbaccel' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
