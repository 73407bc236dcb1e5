"""Which precisions the devices of a launch have in hardware, told without opening one.

A worker asks its own device when an ``Accelerator`` is made; this is the same rule for whoever has to
choose before. Where a device's abilities aren't known here, the worker has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from nbaccel.config import PRECISIONS
from nbaccel.launch.devices.model import Accelerators, Unit

BF16_CAPABILITY = (8, 0)
"""NVIDIA's Ampere: torch emulates bf16 on older GPUs, slower than float32."""


def lacking(found: Accelerators, chosen: Sequence[int] | None = None) -> dict[str, str]:
    """For each precision that isn't enabled, why.

    Args:
        found: what the launch computes on; one with no units stands for the CPU.
        chosen: numbers of the units in use; None for all.

    Returns:
        Precision -> a reason, one line; those that are enabled aren't in it.
    """
    from nbaccel.runtime.devices import DEVICES

    kind = DEVICES.get(found.device_type)
    units = [unit for unit in found.units if chosen is None or unit.index in chosen]
    reasons: dict[str, str] = {}
    for name in PRECISIONS:
        if name == "no":
            continue
        if name == "fp8":
            why = _lacks_fp8(found, units)
        elif name == "bf16" and found.platform == "cuda":
            why = _below(units, BF16_CAPABILITY, "torch only emulates it")
        elif kind is None:
            why = ""  # a worker will tell
        else:
            import torch

            dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
            why = "" if dtype in kind.amp_dtypes else f"{found.platform} devices don't do it"
        if why:
            reasons[name] = why
    return reasons


def _lacks_fp8(found: Accelerators, units: Sequence[Unit]) -> str:
    from nbaccel.runtime.devices.cuda import FP8_CAPABILITY

    if found.platform != "cuda":
        return "it needs an NVIDIA GPU with fp8 units"
    why = _below(units, FP8_CAPABILITY, "it has no fp8 units")
    if not why and find_spec("torchao") is None:
        why = "it needs torchao, which isn't installed: pip install torchao"
    return why


def _below(units: Sequence[Unit], least: tuple[int, int], why: str) -> str:
    for unit in units:
        if unit.capability is not None and unit.capability < least:
            major, minor = unit.capability
            return f"cuda:{unit.index} ({unit.name}) has compute capability {major}.{minor}: {why}"
    return ""
