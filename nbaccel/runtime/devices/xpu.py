"""Intel GPUs."""

from __future__ import annotations

from typing import ClassVar

import torch

from nbaccel.runtime.devices.base import ModuleDevice


class XpuDevice(ModuleDevice):
    """Ranks on Intel GPUs talk over XCCL, which torch ships."""

    type: ClassVar[str] = "xpu"
    multi_name: ClassVar[str] = "MULTI_XPU"
    backend: ClassVar[str | None] = "xccl"
    amp_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.bfloat16, torch.float16})
