"""Where this process stands: its rank, its device, and how it talks to the others."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from nbaccel.config import active_spec, ambient
from nbaccel.runtime.choices import DistributedType
from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.devices import Device, detect_device, device_named
from nbaccel.runtime.devices.xla import unused_tpu
from nbaccel.runtime.environment import ProcessEnvironment
from nbaccel.runtime.plugins import InitProcessGroupKwargs
from nbaccel.runtime.rank_local import RankLocal


@dataclass(frozen=True)
class Runtime:
    """What every part of the runtime is handed."""

    environment: ProcessEnvironment
    kind: Device
    device: torch.device
    communicator: Communicator

    @property
    def distributed_type(self) -> DistributedType:
        """What kind of processes train together."""
        alone = self.environment.world_size == 1
        return DistributedType(self.kind.single_name if alone else self.kind.multi_name)


@dataclass
class _Known:
    runtime: Runtime | None = None
    precision: str | None = None


_known = RankLocal(_Known)


def current() -> Runtime:
    """The runtime that was brought up last; one is brought up when there is none."""
    return _known.get().runtime or bring_up()


def note_precision(name: str) -> None:
    """Remember the precision of the Accelerator that was made last, for those who ask without it."""
    _known.get().precision = name


def noted_precision() -> str | None:
    """The precision of the Accelerator that was made last; None when there is none."""
    return _known.get().precision


def is_up() -> bool:
    """Whether a runtime was brought up."""
    return _known.get().runtime is not None


def forget() -> None:
    """The next call of :func:`current` finds out anew. The process group isn't touched."""
    _known.set(_Known())


def bring_up(cpu: bool = False, group: InitProcessGroupKwargs | None = None) -> Runtime:
    """Find out where this process stands, and bring the process group up when there are several.

    Args:
        cpu: compute on the CPU even where there is an accelerator.
        group: options of the process group.

    Raises:
        ValueError: the environment is contradictory, or there are fewer devices than processes.
        RuntimeError: the process group can't come up, or an existing one doesn't fit.
    """
    kind, ids = choose_device(cpu)
    if kind.type == "cpu" and active_spec() is None and not (cpu or ambient("cpu")):
        _tell_of_unused_tpu()
    environment = kind.environment()
    unit = kind.unit(environment.local_rank, ids)
    kind.activate(unit)
    communicator = kind.connect(environment, unit, group or InitProcessGroupKwargs())
    runtime = _known.get().runtime = Runtime(environment, kind, unit, communicator)
    return runtime


def _tell_of_unused_tpu() -> None:
    sign = unused_tpu()
    if sign is not None:
        warnings.warn(
            f"a TPU is here ({sign}), but this process computes on the CPU: notebook_launcher(function) runs "
            "the same code on all cores of the TPU. It isn't opened from here, because a process that holds "
            "it keeps launches from it",
            stacklevel=4,
        )


def choose_device(cpu: bool) -> tuple[Device, tuple[int, ...]]:
    """The kind of hardware to use, and the ids of its units that are in use on this node (empty: all).

    An explicit ``cpu`` comes first, then the launch, then the environment, then what there is.
    """
    spec = active_spec()
    if cpu or (spec is None and ambient("cpu")):
        return device_named("cpu"), ()
    if spec is None:
        return detect_device(), ()
    return (device_named("cpu"), ()) if spec.cpu else (device_named(spec.device_type), spec.devices)
