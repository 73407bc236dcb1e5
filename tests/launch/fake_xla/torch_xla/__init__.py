"""Stands in for torch_xla where its place in a launch is tested. Its devices are the CPU, which computes at
once; collectives between processes go over gloo, in place of the chips' own network.

As the real one: importing it starts nothing, a device is a thread's own, and what started its runtime says
so.
``FAKE_XLA_ORDINALS=2,0,3,1`` numbers the devices of all processes; ``FAKE_XLA_FAULT`` is raised at the start;
the device with the ordinal ``FAKE_XLA_STUCK`` never comes to an end of what it was given.
"""

import os
import threading
from types import SimpleNamespace

import torch

started = False
calls: list[str] = []
"""Functions that were called in this process, but for the question whether the runtime runs."""
_thread = threading.local()


def device() -> torch.device:
    calls.append("device")
    start()
    return torch.device(getattr(_thread, "device", local_devices()[0]))


def sync() -> None:
    calls.append("sync")


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


def start() -> None:
    global started
    if fault := os.environ.get("FAKE_XLA_FAULT"):
        raise RuntimeError(fault)
    started = True


def local_devices() -> list[str]:
    """Names that torch takes, so that a backward pass runs: ``cpu:0``."""
    if os.environ["PJRT_DEVICE"] == "CPU":
        return [f"cpu:{number}" for number in range(int(os.environ["CPU_NUM_DEVICES"]))]
    return [f"cpu:{number}" for number in range(int(os.environ.get("FAKE_XLA_CORES", "1")))]


def ordinal() -> int:
    index = local_devices().index(str(device()))
    process = int(os.environ.get("CLOUD_TPU_TASK_ID", "0"))
    position = process * len(local_devices()) + index
    numbers = os.environ.get("FAKE_XLA_ORDINALS")
    return int(numbers.split(",")[position]) if numbers else position


def _set_default_device(name: str) -> None:
    calls.append("_xla_set_default_device")
    _thread.device = name


_XLAC = SimpleNamespace(
    _xla_runtime_is_initialized=lambda: started,
    _xla_set_default_device=_set_default_device,
    _set_all_reduce_token=lambda _device, _token: None,
    _xla_tensors_from_aten=lambda tensors, _devices, _sharding: [tensor.clone() for tensor in tensors],
)
