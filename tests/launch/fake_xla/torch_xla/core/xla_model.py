"""Of the stand-in: the devices of this process, and collectives between processes of one device each."""

import os
import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist

import torch_xla

REDUCE_SUM = "sum"


def get_xla_supported_devices() -> list[str]:
    torch_xla.calls.append("get_xla_supported_devices")
    torch_xla.start()
    return torch_xla.local_devices()


def wait_device_ops() -> None:
    if os.environ.get("FAKE_XLA_STUCK") == str(torch_xla.ordinal()):
        threading.Event().wait()


def all_reduce(kind: str, value: torch.Tensor | Sequence[torch.Tensor], scale: float = 1.0):
    """A tensor gives a new one; those of a list are overwritten."""
    assert kind == REDUCE_SUM
    outcome = [value.clone()] if isinstance(value, torch.Tensor) else list(value)
    for tensor in outcome:
        dist.all_reduce(tensor, group=_network())
        if scale != 1.0:
            tensor.mul_(scale)
    return outcome[0] if isinstance(value, torch.Tensor) else outcome


def all_gather(value: torch.Tensor, pin_layout: bool = True) -> torch.Tensor:
    assert not pin_layout
    group = _network()
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, value, group=group)
    return torch.cat(parts)


def _network() -> None:
    """The default group, made by whoever comes first."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=torch_xla.ordinal(), world_size=int(os.environ["WORLD_SIZE"]))
