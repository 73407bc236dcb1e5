"""NVIDIA (and ROCm) GPUs."""

from __future__ import annotations

from typing import ClassVar

import torch

from nbaccel.runtime.devices.base import ModuleDevice

# Ada and Hopper; older units would compute fp8 in software.
FP8_CAPABILITY = (8, 9)


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

    def lacks_fp8(self) -> str | None:
        if torch.version.hip is not None:
            return "fp8 on AMD GPUs hasn't been tried"
        capability = torch.cuda.get_device_capability()
        if capability >= FP8_CAPABILITY:
            return None
        return f"{torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}"
