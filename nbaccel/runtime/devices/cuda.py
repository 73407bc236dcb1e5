"""NVIDIA (and ROCm) GPUs."""

from __future__ import annotations

from typing import ClassVar

import torch

from nbaccel.runtime.devices.base import ModuleDevice


class CudaDevice(ModuleDevice):
    """Ranks on GPUs talk over NCCL."""

    type: ClassVar[str] = "cuda"
    multi_name: ClassVar[str] = "MULTI_GPU"
    backend: ClassVar[str | None] = "nccl"
    amp_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.bfloat16, torch.float16})

    def supports_amp(self, dtype: torch.dtype) -> bool:
        # torch emulates bf16 on GPUs before Ampere, slower than fp32; that isn't what was asked for.
        if dtype is torch.bfloat16:
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        return super().supports_amp(dtype)
