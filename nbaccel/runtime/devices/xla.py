"""XLA devices: TPU cores, and torch_xla's CPU client for rehearsals.

The runtime of torch_xla holds its chips from the first touch on, and a process that holds them can't
launch. So this device counts as available only where somebody has started that runtime on purpose: the
launcher in its workers, or the user's own code. Nothing here starts it, and torch_xla is imported only
where it has been already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from nbaccel.runtime.devices import xla_graphs
from nbaccel.runtime.devices.base import Device
from nbaccel.runtime.environment import ProcessEnvironment, take_place, thread_place
from nbaccel.runtime.nested import map_structure
from nbaccel.runtime.tpu_chips import GOOGLE_PCI_VENDOR, PCI_NUMBERS

if TYPE_CHECKING:
    from nbaccel.runtime.collectives.communicator import Communicator
    from nbaccel.runtime.plugins import InitProcessGroupKwargs


class XlaDevice(Device):
    """Ranks talk through the collectives that XLA compiles into their graphs."""

    type: ClassVar[str] = "xla"
    multi_name: ClassVar[str] = "XLA"
    single_name: ClassVar[str] = "XLA"
    static_shapes: ClassVar[bool] = True
    # Cores compute in bf16; fp16 would be emulated, at the price of a loss scale.
    amp_dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.bfloat16})

    def count(self) -> int:
        if not runtime_is_live():
            return 0
        import torch_xla.runtime as xr

        return int(xr.addressable_device_count())

    def unit(self, local_rank: int, ids: tuple[int, ...] = ()) -> torch.device:
        import torch_xla

        # Whoever started this thread has made its rank's device the default one.
        own: torch.device = torch_xla.device()
        return own

    def environment(self) -> ProcessEnvironment:
        """What XLA says. Threads that are ranks are told apart from then on."""
        if (place := thread_place()) is not None:
            return place
        import torch_xla.runtime as xr

        found = ProcessEnvironment(
            xr.global_ordinal(), xr.local_ordinal(), xr.world_size(), xr.local_device_count()
        )
        if found.world_size == 1:
            return ProcessEnvironment()
        if xr.addressable_device_count() > 1:
            take_place(found)
        return found

    def connect(
        self, environment: ProcessEnvironment, unit: torch.device, options: InitProcessGroupKwargs
    ) -> Communicator:
        from nbaccel.runtime.collectives.xla_communicator import XlaCommunicator

        return XlaCommunicator(environment.rank, environment.world_size, unit)

    def synchronize(self) -> None:
        import torch_xla.core.xla_model as xm

        xla_graphs.cut()
        xm.wait_device_ops()

    def come_to_rest(self) -> None:
        """After user code was broken off: wait until the core has done what it was given.

        That may be for ever, when a collective is among it that other ranks haven't come to.
        """
        import torch_xla

        # A collective that was recorded, and never handed over, would go along with the next one.
        torch_xla._XLAC._set_all_reduce_token(str(torch_xla.device()), None)
        self.synchronize()

    def uploader(self, unit: torch.device) -> Callable[[Any], Any]:
        def upload(batch: Any) -> Any:
            return xla_graphs.batch_comes(_upload(batch, unit))

        return upload

    def batch_is_done(self) -> Callable[[], None]:
        return xla_graphs.batch_is_done

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        import torch_xla

        if not tensors:
            return []
        # All in one transfer, and each once, however many names it has. No cut, which would move the
        # device's generator on: files change nothing in the run.
        ids = [torch_xla._XLAC._xla_get_tensor_id(tensor) for tensor in tensors]
        unique = {key: tensor.detach() for key, tensor in zip(ids, tensors, strict=True)}
        plain = list(unique.values())
        torch_xla._XLAC._xla_sync_multi(plain, devices=[], wait=True, sync_xla_data=True)
        copies = torch_xla._XLAC._xla_get_cpu_tensors(plain)
        by_id = dict(zip(unique, copies, strict=True))
        return [by_id[key] for key in ids]

    def seed(self, seed: int) -> None:
        import torch_xla

        torch_xla.manual_seed(seed)

    def rng_state(self, unit: torch.device) -> torch.Tensor:
        import torch_xla.core.xla_model as xm

        # An unsigned number of 64 bits.
        raw = int(xm.get_rng_state(str(unit))).to_bytes(8, "little")
        return torch.tensor(list(raw), dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, unit: torch.device) -> None:
        import torch_xla.core.xla_model as xm

        xm.set_rng_state(int.from_bytes(bytes(state.tolist()), "little"), str(unit))


def _upload(batch: Any, unit: torch.device) -> Any:
    """Start the transfer of all tensors at once. Containers keep their type."""
    import torch_xla

    waiting: list[torch.Tensor] = []

    def collect(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if leaf.device.type == "cpu":
                waiting.append(leaf.detach())
            return leaf
        return leaf.to(unit) if hasattr(leaf, "to") else leaf

    moved = map_structure(collect, batch)
    if not waiting:
        return moved
    # Not .to(): that would leave the transfer for the moment when the graph is handed over.
    arrived = iter(torch_xla._XLAC._xla_tensors_from_aten(waiting, [str(unit)] * len(waiting), None))
    return map_structure(
        lambda leaf: next(arrived) if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" else leaf,
        moved,
    )


def runtime_is_live() -> bool:
    """Whether this process has started torch_xla's runtime. Doesn't import or start it."""
    module = sys.modules.get("torch_xla")
    binding = getattr(module, "_XLAC", None)
    return binding is not None and bool(binding._xla_runtime_is_initialized())


def unused_tpu(pci: str = "/sys/bus/pci/devices") -> str | None:
    """What tells that this machine has a TPU, for a process that computes on the CPU; None without.

    Opens no device and imports nothing. The launcher looks more closely.

    Args:
        pci: where the kernel lists what is on the PCI bus.
    """
    if os.environ.get("PJRT_DEVICE", "").upper() == "TPU":
        return "PJRT_DEVICE=TPU"
    for slot in sorted(Path(pci).glob("*")):
        try:
            maker, kind = ((slot / name).read_text().strip() for name in ("vendor", "device"))
        except OSError:
            continue  # unplugged meanwhile, or not ours to read
        if maker == GOOGLE_PCI_VENDOR and kind in PCI_NUMBERS.values():
            return str(slot)
    return None
