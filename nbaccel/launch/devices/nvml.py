"""NVIDIA's management library: names, memory and load of GPUs, without a CUDA context.

It counts all GPUs of the machine in bus order, whatever ``CUDA_VISIBLE_DEVICES`` says. Every failure
of the library becomes :class:`NvmlError`, which callers answer by asking a process of its own instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from nbaccel.launch.devices.model import Usage


class NvmlError(RuntimeError):
    """The library isn't there, or can't answer."""


@dataclass(frozen=True)
class PhysicalGpu:
    """A GPU of this machine, visible to CUDA or not."""

    uuid: str
    """``GPU-`` and the driver's identifier."""

    name: str
    is_split: bool
    """In MIG mode: CUDA sees parts of it."""

    capability: tuple[int, int] | None = None
    """Its compute capability; None where the library can't tell."""


class Nvml:
    """The library between its start and its end: a context manager.

    Args:
        library: the module ``pynvml`` of the package nvidia-ml-py.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def __enter__(self) -> Self:
        self._call(self._library.nvmlInit)
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._library.nvmlShutdown)

    def driver_cuda_major(self) -> int:
        """The newest major version of CUDA that the driver can run."""
        return int(self._call(self._library.nvmlSystemGetCudaDriverVersion)) // 1000

    def gpus(self) -> tuple[PhysicalGpu, ...]:
        """All GPUs of the machine, in bus order."""
        count = self._call(self._library.nvmlDeviceGetCount)
        return tuple(self._gpu(index) for index in range(count))

    def _gpu(self, index: int) -> PhysicalGpu:
        handle = self._call(self._library.nvmlDeviceGetHandleByIndex, index)
        return PhysicalGpu(
            uuid=_text(self._call(self._library.nvmlDeviceGetUUID, handle)),
            name=_text(self._call(self._library.nvmlDeviceGetName, handle)),
            is_split=self._is_split(handle),
            capability=self._capability(handle),
        )

    def _capability(self, handle: object) -> tuple[int, int] | None:
        try:
            major, minor = self._library.nvmlDeviceGetCudaComputeCapability(handle)
        except self._library.NVMLError:
            return None
        return int(major), int(minor)

    def _is_split(self, handle: object) -> bool:
        try:
            current, _pending = self._library.nvmlDeviceGetMigMode(handle)
        except self._library.NVMLError:
            return False  # a GPU that can't be split answers so
        return bool(current)

    def usage(self, uuid: str) -> Usage:
        """Memory and load of one GPU, or of one part of a split one."""
        handle = self._handle(uuid)
        memory = self._call(self._library.nvmlDeviceGetMemoryInfo, handle)
        try:
            load = self._library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except self._library.NVMLError:
            load = None  # nobody counts it for a part of a GPU
        return Usage(int(memory.used), int(memory.total), load)

    def _handle(self, uuid: str) -> object:
        get = self._library.nvmlDeviceGetHandleByUUID
        if uuid.startswith(("GPU-", "MIG-")):
            return self._call(get, uuid)
        # torch gives identifiers without the letters in front.
        try:
            return get(f"GPU-{uuid}")
        except self._library.NVMLError:
            return self._call(get, f"MIG-{uuid}")

    def _call(self, function: Callable[..., Any], *args: object) -> Any:
        try:
            return function(*args)
        except self._library.NVMLError as error:
            raise NvmlError(str(error)) from error


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
