"""Where this process stands: its rank, its device, and how it talks to the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nbaccel.config import active_spec, ambient
from nbaccel.runtime import process_group
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


def bring_up(cpu: bool = False, group: InitProcessGroupKwargs | None = None) -> Runtime:
    """Find out where this process stands, and bring the process group up when there are several.

    Args:
        cpu: compute on the CPU even where there is an accelerator.
        group: options of the process group.

    Raises:
        ValueError: the environment is contradictory, or there are fewer devices than processes.
        RuntimeError: the process group can't come up, or an existing one doesn't fit.
    """
    environment = ProcessEnvironment.detect()
    kind, ids = choose_device(cpu)
    unit = kind.unit(environment.local_rank, ids)
    kind.activate(unit)
    if environment.world_size == 1:
        return Runtime(environment, kind, unit, LocalCommunicator())
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
    return Runtime(environment, kind, unit, communicator)


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
