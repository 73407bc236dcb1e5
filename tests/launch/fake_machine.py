"""Machines that aren't here: NVML and torch's answers, behind the seam of device discovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from nbaccel.launch.devices.model import Accelerators, Unit, Usage
from nbaccel.launch.devices.probe import Answer
from nbaccel.launch.devices.system import Build

GIB = 1 << 30
A100 = "NVIDIA A100-SXM4-80GB"
CUDA_BUILD = Build("cuda", "cuda", "12.8")
ROCM_BUILD = Build("cuda", "rocm", "6.4.43482")
XPU_BUILD = Build("xpu", "xpu", "20250300")
MPS_BUILD = Build("mps", "mps")
CPU_BUILD = Build("cpu", "cpu")


@dataclass
class Gpu:
    uuid: str
    name: str = A100
    used: int = 1 * GIB
    total: int = 80 * GIB
    load: int | None = 0
    mig: bool | None = False
    """None: a GPU that can't be split, which answers with an error."""
    fails: bool = False
    capability: tuple[int, int] | None = None
    """None: a driver that can't tell."""


class FakeNvml:
    """The functions of ``pynvml`` that are used, with their habits: texts as bytes, errors as exceptions."""

    class NVMLError(Exception):
        pass

    def __init__(self, gpus: Sequence[Gpu], *, driver: int = 12080, starts: bool = True) -> None:
        self.gpus = list(gpus)
        self.driver = driver
        self.starts = starts
        self.open = 0
        """Starts without an end so far: 0 when nobody uses the library."""
        self.was_used = False

    def nvmlInit(self) -> None:
        if not self.starts:
            raise self.NVMLError("Driver/library version mismatch")
        self.open += 1
        self.was_used = True

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        assert self.open
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if self.gpus[index].fails:
            raise self.NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise self.NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> bytes:
        return gpu.uuid.encode()

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return gpu.name

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        if gpu.mig is None:
            raise self.NVMLError("Not Supported")
        return [int(gpu.mig), int(gpu.mig)]

    def nvmlDeviceGetCudaComputeCapability(self, gpu: Gpu) -> list[int]:
        if gpu.capability is None:
            raise self.NVMLError("Not Supported")
        return list(gpu.capability)

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> Any:
        assert self.open
        return SimpleNamespace(used=gpu.used, total=gpu.total, free=gpu.total - gpu.used)

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> Any:
        if gpu.load is None:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=gpu.load, memory=0)


@dataclass
class FakeMachine:
    """What :class:`nbaccel.launch.devices.system.Machine` asks for."""

    torch_build: Build = CPU_BUILD
    library: FakeNvml | None = None
    driver: bool = True
    torch_units: Sequence[Unit] = ()
    torch_usage: Sequence[Usage | None] = ()
    complaint: str = ""
    tpu_found: Accelerators | None = None
    questions: list[tuple[str, bool]] = field(default_factory=list)
    """Device type and whether memory was wanted, of each process that would have been started."""

    def build(self) -> Build:
        return self.torch_build

    def tpu(self, environ: Mapping[str, str]) -> Accelerators | None:
        return self.tpu_found

    def has_driver(self, platform: str) -> bool:
        return self.driver

    def nvml(self) -> FakeNvml | None:
        return self.library

    def ask_torch(self, device_type: str, environ: Mapping[str, str], *, want_memory: bool) -> Answer:
        self.questions.append((device_type, want_memory))
        usage = tuple(self.torch_usage) if want_memory else (None,) * len(self.torch_units)
        return Answer(tuple(self.torch_units), usage, self.complaint)


def cuda_machine(*gpus: Gpu, **kwargs: Any) -> FakeMachine:
    return FakeMachine(CUDA_BUILD, FakeNvml(gpus, **kwargs))


def gpus(count: int) -> list[Gpu]:
    """Equal ones, whose identifiers differ in the first digit."""
    return [Gpu(f"GPU-{index}aaa-bbbb") for index in range(count)]


def units(count: int, name: str = A100) -> list[Unit]:
    return [Unit(index, name, f"{index}aaa-bbbb") for index in range(count)]
