"""Which devices torch.distributed's default process group carries tensors between."""

from __future__ import annotations

import torch
import torch.distributed as dist


def served_device_types() -> set[str]:
    """Device types that the default group has a backend for."""
    return {pair.partition(":")[0] for pair in dist.get_backend_config().split(",")}


def travel_device() -> torch.device:
    """Where bytes must lie for the default group to carry them; the host, if it may be."""
    if "cpu" in served_device_types():
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None, "a group that doesn't serve the CPU serves an accelerator"
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
