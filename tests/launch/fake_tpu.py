"""TPU hosts that aren't here: a tree with ``sys``, ``dev`` and ``proc``, and the packages that are "
"installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nbaccel.launch.devices import tpu
from nbaccel.launch.devices.model import Accelerators
from nbaccel.launch.devices.system import Build, ThisMachine

PACKAGES = Path(__file__).parent / "fake_xla"
"""Folder to put on the import path: a stand-in for torch_xla lies in it."""

V3, V4, V5P, V5E, V6E, V7X = "0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"


@dataclass
class FakeTpuHost(tpu.TpuHost):
    """A host below ``root``. Packages are those that it is told of, never those of this environment."""

    root: Path
    packages: Mapping[str, str] = field(default_factory=lambda: {"torch_xla": "2.9.0"})
    torch: str = "2.9.0+cpu"

    def __post_init__(self) -> None:
        super().__init__(self.root)

    def plug_in(self, chip: str, count: int = 1, *, vendor: str = "0x1ae0") -> FakeTpuHost:
        """Put chips on the PCI bus, with their files in ``/dev``."""
        bus = self.root / "sys/bus/pci/devices"
        first = len(list(bus.glob("*"))) if bus.exists() else 0
        for number in range(first, first + count):
            slot = bus / f"0000:00:{number:02x}.0"
            slot.mkdir(parents=True)
            (slot / "vendor").write_text(f"{vendor}\n")
            (slot / "device").write_text(f"{chip}\n")
            if vendor == "0x1ae0":
                self.add_file(f"accel{number}" if chip in (V3, V4) else f"vfio/{number}")
        return self

    def add_file(self, name: str) -> FakeTpuHost:
        """Something in ``/dev``. It can't be opened: a read of it would hang, or fail the test."""
        path = self.root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        return self

    def open_in(self, pid: int, name: str, target: str) -> None:
        """Let a process have a device file open."""
        folder = self.root / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "fd" / str(3 + len(list((folder / "fd").iterdir())))).symlink_to(target)

    def package(self, name: str) -> tpu.Package | None:
        return tpu.Package(self.packages[name]) if name in self.packages else None

    def torch_version(self) -> str:
        return self.torch


class FakeTpuMachine(ThisMachine):
    """This machine, with another host's TPUs and a torch for the CPU."""

    def __init__(self, host: tpu.TpuHost) -> None:
        self.host = host

    def build(self) -> Build:
        return Build("cpu", "cpu")

    def tpu(self, environ: Mapping[str, str]) -> Accelerators | None:
        return tpu.find(environ, self.host)
