"""What a worker of a session does beyond running tasks: it keeps a process group, and gets a new one; on
XLA devices, which have none, it only comes to terms with the others again.

Runs in the worker's main thread. The group is up from the first task on, so that code which uses
``torch.distributed`` directly works, and code pasted from a script that brings the group up itself
goes on without an error.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

from nbaccel import config
from nbaccel.launch.transport.messages import Ambience, Regroup

if TYPE_CHECKING:
    import torch

    from nbaccel.runtime.devices.base import Device
    from nbaccel.runtime.devices.xla import XlaDevice
    from nbaccel.runtime.environment import ProcessEnvironment


def take_in(ambience: Ambience) -> None:
    """Take on what has changed around the kernel."""
    if ambience.spec is not None:
        config.set_active_spec(ambience.spec)
    if ambience.path is not None:
        sys.path[:] = ambience.path
    if ambience.cwd is not None:
        os.chdir(ambience.cwd)
    for name, value in (ambience.environ or {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def has_group() -> bool:
    """Whether this worker has a default process group."""
    import torch.distributed as dist

    return dist.is_initialized()


def regroup(order: Regroup) -> str:
    """Leave the process group there is and make a new one; says what went wrong, if anything."""
    from nbaccel.runtime.devices.xla import XlaDevice
    from nbaccel.runtime.environment import ProcessEnvironment
    from nbaccel.runtime.runtime import choose_device
    from nbaccel.runtime.steps import clock

    try:
        clock().go_on()
        environment = ProcessEnvironment.detect()
        kind, ids = choose_device(cpu=False)
        unit = kind.unit(environment.local_rank, ids)
        if isinstance(kind, XlaDevice):
            _regroup_cores(order, kind, environment, unit)
        else:
            _regroup_processes(order, kind, environment, unit)
    except Exception as error:  # noqa: BLE001  # told to the kernel, which ends the session
        return f"{type(error).__name__}: {error}"
    return ""


def _regroup_processes(
    order: Regroup, kind: Device, environment: ProcessEnvironment, unit: torch.device
) -> None:
    from nbaccel.runtime import process_group, recovery
    from nbaccel.runtime.collectives.torch_communicator import TorchCommunicator

    process_group.shutdown_process_group()
    gc.collect()  # frames of the task that failed may hold the old group in a cycle, with its sockets
    process_group.begin_round(order.number)
    process_group.ensure_process_group(environment, kind.type, device=unit)
    _tolerate_a_second_init()
    if order.align:
        recovery.align(TorchCommunicator(environment.rank, environment.world_size, unit))


def _regroup_cores(
    order: Regroup, kind: XlaDevice, environment: ProcessEnvironment, unit: torch.device
) -> None:
    """XLA has no group that could be made anew: its collectives are parts of the cores' programs.

    So two rounds are needed. All cores must be at rest before the first collective of the second one.
    """
    from nbaccel.runtime import process_group, recovery
    from nbaccel.runtime.plugins import InitProcessGroupKwargs

    if not order.align:
        recovery.forget_windows()
        kind.come_to_rest()
        return
    communicator = kind.connect(environment, unit, InitProcessGroupKwargs())
    if environment.world_size > 1:
        process_group.rebind_users(communicator.all_gather_object)
    recovery.align(communicator)


def _tolerate_a_second_init() -> None:
    """Let ``init_process_group`` for the world that is up already do nothing."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    original = distributed_c10d.init_process_group
    if getattr(original, "_nbaccel_tolerant", False):
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        rank, world = kwargs.get("rank", -1), kwargs.get("world_size", -1)
        fits = rank in (-1, None, _rank()) and world in (-1, None, _world())
        if dist.is_initialized() and fits:
            return
        original(*args, **kwargs)

    init_process_group._nbaccel_tolerant = True  # type: ignore[attr-defined]  # noqa: SLF001
    distributed_c10d.init_process_group = init_process_group
    dist.init_process_group = init_process_group


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else -1


def _world() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_initialized() else -1
