"""nbaccel: PyTorch training from a notebook on everything the machine has.

Public names are loaded on first use: importing the package touches no device, reads no
configuration and changes nothing in ``os.environ``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nbaccel.left_out import answer_imports, missing

__version__ = "0.1.0.dev0"

# name -> module that owns it. The one place where the public surface is listed.
_EXPORTS: dict[str, str] = {
    "Accelerator": "nbaccel.accelerator",
    "notebook_launcher": "nbaccel.launch.launcher",
    "debug_launcher": "nbaccel.launch.launcher",
    "last_failure": "nbaccel.launch.traces.postmortem",
    "session": "nbaccel.launch.current",
    "configure": "nbaccel.widgets.form",
    "LaunchSpec": "nbaccel.config",
    "AutocastKwargs": "nbaccel.runtime.plugins",
    "DDPCommunicationHookType": "nbaccel.runtime.choices",
    "DataLoaderConfiguration": "nbaccel.runtime.plugins",
    "DistributedDataParallelKwargs": "nbaccel.runtime.plugins",
    "DistributedType": "nbaccel.runtime.choices",
    "GradScalerKwargs": "nbaccel.runtime.plugins",
    "GradientAccumulationPlugin": "nbaccel.runtime.plugins",
    "InitProcessGroupKwargs": "nbaccel.runtime.plugins",
    "LocalSGD": "nbaccel.runtime.local_sgd",
    "PartialState": "nbaccel.state",
    "ProfileKwargs": "nbaccel.runtime.plugins",
    "ProjectConfiguration": "nbaccel.runtime.plugins",
    "find_executable_batch_size": "nbaccel.runtime.memory",
    "get_logger": "nbaccel.runtime.log",
    "reset": "nbaccel.state",
    "set_seed": "nbaccel.runtime.free_collectives",
    "skip_first_batches": "nbaccel.runtime.data.prepare",
    "synchronize_rng_states": "nbaccel.runtime.free_collectives",
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
    from nbaccel.launch.current import session as session
    from nbaccel.launch.launcher import debug_launcher as debug_launcher
    from nbaccel.launch.launcher import notebook_launcher as notebook_launcher
    from nbaccel.launch.traces.postmortem import last_failure as last_failure
    from nbaccel.runtime.choices import DDPCommunicationHookType as DDPCommunicationHookType
    from nbaccel.runtime.choices import DistributedType as DistributedType
    from nbaccel.runtime.data.prepare import skip_first_batches as skip_first_batches
    from nbaccel.runtime.free_collectives import set_seed as set_seed
    from nbaccel.runtime.free_collectives import synchronize_rng_states as synchronize_rng_states
    from nbaccel.runtime.local_sgd import LocalSGD as LocalSGD
    from nbaccel.runtime.log import get_logger as get_logger
    from nbaccel.runtime.memory import find_executable_batch_size as find_executable_batch_size
    from nbaccel.runtime.plugins import AutocastKwargs as AutocastKwargs
    from nbaccel.runtime.plugins import DataLoaderConfiguration as DataLoaderConfiguration
    from nbaccel.runtime.plugins import DistributedDataParallelKwargs as DistributedDataParallelKwargs
    from nbaccel.runtime.plugins import GradientAccumulationPlugin as GradientAccumulationPlugin
    from nbaccel.runtime.plugins import GradScalerKwargs as GradScalerKwargs
    from nbaccel.runtime.plugins import InitProcessGroupKwargs as InitProcessGroupKwargs
    from nbaccel.runtime.plugins import ProfileKwargs as ProfileKwargs
    from nbaccel.runtime.plugins import ProjectConfiguration as ProjectConfiguration
    from nbaccel.state import PartialState as PartialState
    from nbaccel.state import reset as reset
    from nbaccel.widgets.form import configure as configure

__all__ = ["__version__", *_EXPORTS]

answer_imports()


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise missing(__name__, name)
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext nbaccel``: the magics ``%%accelerate`` and ``%accelerate``."""
    from nbaccel.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext nbaccel``: the workers end, the magics go."""
    from nbaccel.magics import unload

    unload(shell)
