"""TPUs through torch_tpu, the successor of torch_xla: torch's device type ``tpu``, eager, a process a chip.

Not run: torch_tpu needs a TPU even to be imported. What is here follows its published interface (device type
and module ``tpu``, process-group backend ``tpu_dist``, ``set_tpu_launch_env``), and nothing more is assumed.
TPUs
of v2 and v3 aren't known to it. :mod:`nbaccel.runtime.devices.xla` is the device of torch_xla.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import torch

from nbaccel.runtime.devices.base import ModuleDevice
from nbaccel.runtime.environment import ProcessEnvironment


class TpuDevice(ModuleDevice):
    """Ranks on TPU chips talk over torch_tpu's backend; each sees the one chip that is its own."""

    type: ClassVar[str] = "tpu"
    multi_name: ClassVar[str] = "XLA"
    backend: ClassVar[str | None] = "tpu_dist"
    amp_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.bfloat16})

    def count(self) -> int:
        # torch_tpu registers the type when torch is imported; without it torch doesn't know the module.
        return int(self.module.device_count()) if "torch_tpu" in sys.modules else 0

    def unit(self, local_rank: int, ids: tuple[int, ...] = ()) -> torch.device:
        return torch.device(self.type, 0)

    def activate(self, unit: torch.device) -> None:
        if ProcessEnvironment.detect().world_size > 1:
            self.module.distributed.set_tpu_launch_env()
