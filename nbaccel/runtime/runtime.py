"""Where this process stands: its rank, its device, and how it talks to the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nbaccel.config import active_spec, ambient
from nbaccel.runtime import process_group
from nbaccel.runtime.choices import DistributedType
from nbaccel.runtime.collectives.communicator import Communicator, LocalCommunicator
from nbaccel.runtime.collectives.torch_communicator import TorchCommunicator
from nbaccel.runtime.devices import Device, detect_device, device_named
from nbaccel.runtime.environment import ProcessEnvironment
from nbaccel.runtime.plugins import InitProcessGroupKwargs


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
        return (
            DistributedType.NO if self.environment.world_size == 1 else DistributedType(self.kind.multi_name)
        )


_current: Runtime | None = None
_precision: str | None = None


def current() -> Runtime:
    """The runtime that was brought up last; one is brought up when there is none."""
    return bring_up() if _current is None else _current


def note_precision(name: str) -> None:
    """Remember the precision of the Accelerator that was made last, for those who ask without it."""
    global _precision
    _precision = name


def noted_precision() -> str | None:
    """The precision of the Accelerator that was made last; None when there is none."""
    return _precision


def is_up() -> bool:
    """Whether a runtime was brought up."""
    return _current is not None


def forget() -> None:
    """The next call of :func:`current` finds out anew. The process group isn't touched."""
    global _current, _precision
    _current = _precision = None


def bring_up(cpu: bool = False, group: InitProcessGroupKwargs | None = None) -> Runtime:
    """Find out where this process stands, and bring the process group up when there are several.

    Args:
        cpu: compute on the CPU even where there is an accelerator.
        group: options of the process group.

    Raises:
        ValueError: the environment is contradictory, or there are fewer devices than processes.
        RuntimeError: the process group can't come up, or an existing one doesn't fit.
    """
    global _current
    environment = ProcessEnvironment.detect()
    kind, ids = choose_device(cpu)
    unit = kind.unit(environment.local_rank, ids)
    kind.activate(unit)
    if environment.world_size == 1:
        _current = Runtime(environment, kind, unit, LocalCommunicator())
        return _current
    options = group or InitProcessGroupKwargs()
    process_group.ensure_process_group(
        environment,
        kind.type,
        options.timeout,
        backend=options.backend,
        init_method=options.init_method,
        device=unit,
    )
    communicator = TorchCommunicator(environment.rank, environment.world_size, unit)
    _current = Runtime(environment, kind, unit, communicator)
    return _current


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
