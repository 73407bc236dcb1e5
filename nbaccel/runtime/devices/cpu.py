"""The processor: always there, any number of processes share it."""

from __future__ import annotations

from typing import ClassVar

import torch

from nbaccel.runtime.devices.base import Device


class CpuDevice(Device):
    """Ranks on the CPU talk over gloo. Autocast lowers to bf16 and fp16 in torch's own CPU kernels."""

    type: ClassVar[str] = "cpu"
    multi_name: ClassVar[str] = "MULTI_CPU"
    backend: ClassVar[str | None] = "gloo"
    amp_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.bfloat16, torch.float16})

    def count(self) -> int:
        return 1

    def unit(self, local_rank: int, ids: tuple[int, ...] = ()) -> torch.device:
        return torch.device("cpu")
