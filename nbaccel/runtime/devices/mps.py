"""The GPU of an Apple machine: one unit, one process."""

from __future__ import annotations

from typing import ClassVar

import torch

from nbaccel.runtime.devices.base import Device


class MpsDevice(Device):
    """Has no process-group backend, so more than one process on it is refused."""

    type: ClassVar[str] = "mps"
    amp_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.bfloat16, torch.float16})

    def count(self) -> int:
        return int(torch.backends.mps.is_available())

    def unit(self, local_rank: int, ids: tuple[int, ...] = ()) -> torch.device:
        if local_rank > 0:
            raise ValueError(f"local rank {local_rank} has no mps device: there is one; pass cpu=True")
        return torch.device("mps")

    def synchronize(self) -> None:
        torch.mps.synchronize()

    def empty_cache(self) -> None:
        torch.mps.empty_cache()

    def seed(self, seed: int) -> None:
        torch.mps.manual_seed(seed)

    def rng_state(self, unit: torch.device) -> torch.Tensor | None:
        return torch.mps.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, unit: torch.device) -> None:
        torch.mps.set_rng_state(state)
