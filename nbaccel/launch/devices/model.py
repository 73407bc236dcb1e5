"""What is said about accelerators: data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """One accelerator that torch would see."""

    index: int
    """Its number in torch: ``cuda:index``."""

    name: str
    """What its maker calls it, e.g. ``NVIDIA A100-SXM4-80GB``."""

    uuid: str = ""
    """The driver's identifier of it; empty where there is none."""

    capability: tuple[int, int] | None = None
    """NVIDIA's compute capability, e.g. (8, 0); None where it isn't known, or isn't NVIDIA's."""


@dataclass(frozen=True)
class Usage:
    """How busy one accelerator is at this moment, whoever uses it."""

    memory_used: int
    """Bytes in use, by all processes and the driver."""

    memory_total: int
    """Bytes that it has."""

    load: float | None = None
    """Share of the last moments in which it computed, 0 to 1; None where nobody counts it."""

    @property
    def memory_share(self) -> float:
        """Share of its memory in use, 0 to 1."""
        return self.memory_used / self.memory_total if self.memory_total else 0.0


@dataclass(frozen=True)
class Accelerators:
    """The accelerators that torch would use in a fresh process."""

    device_type: str
    """torch's name: ``cuda``, ``xpu``, ``mps``, ``xla``, ``tpu``, or ``cpu`` for none."""

    platform: str
    """The name for people: as ``device_type``, but ``rocm`` for AMD's GPUs, which torch calls ``cuda``, and
    ``tpu`` for XLA's devices on one."""

    units: tuple[Unit, ...] = ()
    """Those that are visible, by index."""

    reason: str = ""
    """Why there is none; empty when there is one."""

    is_broken: bool = False
    """There is hardware, and torch can't use it: worth a word even to one who asked for nothing."""

    type_name: str = ""
    """What the whole of them is called where it has a name: ``v5e-8``."""

    units_per_process: int = 1
    """How many of them belong to one process, which has a thread for each."""

    @property
    def are_taken_whole(self) -> bool:
        """All of them work together, or one alone; there is nothing between."""
        return self.device_type in ("xla", "tpu")

    @property
    def count(self) -> int:
        """How many are visible; 0 on a machine with a CPU only."""
        return len(self.units)


def none_found(reason: str, *, is_broken: bool = False) -> Accelerators:
    """No accelerator, and why."""
    return Accelerators("cpu", "cpu", reason=reason, is_broken=is_broken)
