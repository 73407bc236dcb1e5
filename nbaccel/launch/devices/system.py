"""The machine as device discovery sees it: the one seam behind which tests put another machine."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nbaccel.launch.devices import tpu
from nbaccel.launch.devices.model import Accelerators
from nbaccel.launch.devices.probe import Answer, ask_torch


@dataclass(frozen=True)
class Build:
    """What the installed torch was built for, besides the CPU."""

    device_type: str
    """torch's name: ``cuda``, ``xpu``, ``mps``; ``cpu`` for nothing else."""

    platform: str
    """As ``device_type``, but ``rocm`` for AMD's GPUs, which torch calls ``cuda``."""

    version: str = ""
    """Of the platform, e.g. ``12.8``."""


class Machine(Protocol):
    """All that discovery asks of the world."""

    def build(self) -> Build:
        """What torch was built for."""

    def tpu(self, environ: Mapping[str, str]) -> Accelerators | None:
        """See :func:`nbaccel.launch.devices.tpu.find`."""

    def has_driver(self, platform: str) -> bool:
        """False when it is certain that the platform's driver isn't there."""

    def nvml(self) -> Any | None:
        """The module ``pynvml``, or None where it isn't installed."""

    def ask_torch(self, device_type: str, environ: Mapping[str, str], *, want_memory: bool) -> Answer:
        """See :func:`nbaccel.launch.devices.probe.ask_torch`."""


class ThisMachine:
    """The real one."""

    def build(self) -> Build:
        import torch

        if sys.platform == "darwin":
            return Build("mps", "mps") if torch.backends.mps.is_built() else Build("cpu", "cpu")
        versions = {
            ("cuda", "rocm"): torch.version.hip,
            ("cuda", "cuda"): torch.version.cuda,
            ("xpu", "xpu"): getattr(torch.version, "xpu", None),
        }
        for (device_type, platform), version in versions.items():
            if version:
                return Build(device_type, platform, version)
        return Build("cpu", "cpu")

    def tpu(self, environ: Mapping[str, str]) -> Accelerators | None:
        if not sys.platform.startswith("linux"):
            return None
        return tpu.find(environ, tpu.this_host())

    def has_driver(self, platform: str) -> bool:
        if not sys.platform.startswith("linux"):
            return True  # not certain: torch will tell
        if platform == "cuda":
            try:
                ctypes.CDLL("libcuda.so.1")  # loading it starts nothing
            except OSError:
                return False
        if platform == "rocm":
            return Path("/dev/kfd").exists() or Path("/dev/dxg").exists()
        return True

    def nvml(self) -> Any | None:
        try:
            # By name: no type information is published for it.
            return importlib.import_module("pynvml")
        except ImportError:
            return None

    def ask_torch(self, device_type: str, environ: Mapping[str, str], *, want_memory: bool) -> Answer:
        return ask_torch(device_type, environ, want_memory=want_memory)
