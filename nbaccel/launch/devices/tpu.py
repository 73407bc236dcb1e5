"""TPUs of this host, found without opening them and without importing torch_xla.

What is looked at, all of it by reading names: ``PJRT_DEVICE`` and ``TPU_*`` in the environment, Google's
chips on the PCI bus, ``/dev/accel*`` and ``/dev/vfio/*``, and which packages are installed. No network: the
metadata server isn't asked.

Must not import torch_xla, torch_tpu or libtpu: some of them start things, and a chip that this process
opened is lost to its workers.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from nbaccel.launch.devices.model import Accelerators, Unit, none_found
from nbaccel.launch.devices.tpu_types import Generation, generation_named, generation_of_chip
from nbaccel.runtime.tpu_chips import GOOGLE_PCI_VENDOR

PJRT_DEVICE = "PJRT_DEVICE"
CPU_CORES = "CPU_NUM_DEVICES"
VISIBLE_CHIPS = "TPU_VISIBLE_CHIPS"
ACCELERATOR_TYPE = "TPU_ACCELERATOR_TYPE"

DECIDING_NAMES = (
    PJRT_DEVICE,
    CPU_CORES,
    VISIBLE_CHIPS,
    ACCELERATOR_TYPE,
    "TPU_NAME",
    "COLAB_TPU_ADDR",
)
"""An answer about TPUs holds as long as these have the same values."""

PRODUCT = "tpu"
"""The name for people, whichever package drives it."""

_OTHER_RUNTIMES = ("CUDA", "ROCM", "NEURON", "XPU")
_ACCEL = re.compile(r"accel\d+$")


@dataclass(frozen=True)
class Package:
    """An installed package that drives TPUs."""

    version: str


class TpuHost:
    """Reads this machine; the one seam behind which tests put another one.

    Args:
        root: folder in which ``dev``, ``sys`` and ``proc`` are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def pci_chips(self) -> tuple[str, ...]:
        """PCI device numbers of Google's chips that are TPUs, one a chip."""
        found = []
        for vendor in sorted((self._root / "sys/bus/pci/devices").glob("*/vendor")):
            if _text(vendor) == GOOGLE_PCI_VENDOR:
                device = _text(vendor.with_name("device"))
                if generation_of_chip(device) is not None:
                    found.append(device)
        return tuple(found)

    def device_files(self) -> tuple[str, ...]:
        """Names of the files through which chips are opened."""
        folder = self._root / "dev"
        accel = sorted(path.name for path in folder.glob("accel*") if _ACCEL.match(path.name))
        vfio = sorted(path.name for path in (folder / "vfio").glob("*") if path.name.isdecimal())
        return (*accel, *(f"vfio/{name}" for name in vfio))

    def package(self, name: str) -> Package | None:
        """An installed package, without importing it."""
        module = sys.modules.get(name)
        if module is None and util.find_spec(name) is None:
            return None
        try:
            return Package(metadata.version(name))
        except metadata.PackageNotFoundError:
            return Package(str(getattr(module, "__version__", "")))

    def torch_version(self) -> str:
        """Of the installed torch, e.g. ``2.9.0+cpu``."""
        import torch

        return str(torch.__version__)


def find(environ: Mapping[str, str], host: TpuHost) -> Accelerators | None:
    """What XLA devices a fresh process with this environment would compute on.

    Returns:
        The devices; a reason why those that are here can't be used; None where there is no sign of any.
    """
    chosen = environ.get(PJRT_DEVICE, "").upper()
    if chosen == "CPU":
        return _rehearsal(environ, host)
    if chosen in _OTHER_RUNTIMES:
        return None
    chips = host.pci_chips()
    count = len(chips) or len(host.device_files()) * (chosen == "TPU" or _is_named(environ))
    if not count:
        return _no_chip(chosen, environ)
    generation = generation_named(environ.get(ACCELERATOR_TYPE, ""))
    if generation is None and chips:
        generation = generation_of_chip(chips[0])
    visible = environ.get(VISIBLE_CHIPS, "").strip()
    names = [name.strip() for name in visible.split(",")] if visible else []
    if not all(name.isdecimal() and int(name) < count for name in names) or len(set(names)) < len(names):
        return none_found(
            f"{VISIBLE_CHIPS}={visible!r} isn't a list of this machine's TPU chips, which are 0 to "
            f"{count - 1}; unset it, or name one",
            is_broken=True,
        )
    number = len(names) or count
    if number not in (1, count):
        return none_found(
            f"{VISIBLE_CHIPS}={visible!r} names {number} of {count} TPU chips, and only all of them or one "
            "alone can work; unset it, or name one",
            is_broken=True,
        )
    return _usable(number, generation, host)


def _usable(count: int, generation: Generation | None, host: TpuHost) -> Accelerators:
    name = generation.type_name(count) if generation is not None else f"of {count} chips of an unknown kind"
    refusal = "", ""
    for package, device_type in (("torch_xla", "xla"), ("torch_tpu", "tpu")):
        found = host.package(package)
        if found is None:
            continue
        fault = _misfit(package, found.version, host.torch_version())
        if not fault:
            # torch_tpu has one device a chip, and doesn't know the chips that are two.
            cores = generation.cores_per_chip if generation is not None and device_type == "xla" else 1
            what = f"TPU {generation.name}" if generation is not None else "TPU"
            units = tuple(Unit(number, what) for number in range(count * cores))
            return Accelerators(device_type, PRODUCT, units, type_name=name, units_per_process=cores)
        refusal = package, fault
    if refusal[1]:
        return none_found(f"a TPU {name} is here, but {refusal[1]}", is_broken=True)
    return none_found(
        f"a TPU {name} is here, but neither torch_xla nor torch_tpu is installed; install the torch_xla that "
        f"was made for torch {host.torch_version()}",
        is_broken=True,
    )


def _misfit(package: str, version: str, torch_version: str) -> str:
    """Why the package can't work with the installed torch; empty when it can, as far as can be told."""
    if package != "torch_xla" or not version:
        return ""
    its, ours = version.split(".")[:2], torch_version.split(".")[:2]
    if its == ours:
        return ""
    return (
        f"torch_xla {version} works with torch {'.'.join(its)} only, and torch {torch_version} is installed; "
        f"install torch=={'.'.join(its)}.*"
    )


def _rehearsal(environ: Mapping[str, str], host: TpuHost) -> Accelerators | None:
    """torch_xla's CPU client, where it was asked for.

    torch_xla sets ``PJRT_DEVICE=CPU`` by itself when it is imported and finds nothing else, so that alone is
    no wish.
    """
    text = environ.get(CPU_CORES, "").strip()
    if not text or host.package("torch_xla") is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        return none_found(
            f"{CPU_CORES}={text!r} isn't a number of devices for torch_xla's CPU client; set it to 1, or "
            "unset it",
            is_broken=True,
        )
    count = int(text)
    units = tuple(Unit(number, "XLA device on the CPU") for number in range(count))
    return Accelerators("xla", "xla", units, type_name="cpu client", units_per_process=count)


def _is_named(environ: Mapping[str, str]) -> bool:
    """Whether the environment tells of a TPU, so that device files without a PCI bus are believed."""
    return bool(environ.get(ACCELERATOR_TYPE) or environ.get("TPU_WORKER_HOSTNAMES") or "ISTPUVM" in environ)


def _no_chip(chosen: str, environ: Mapping[str, str]) -> Accelerators | None:
    old = next((name for name in ("COLAB_TPU_ADDR", "TPU_NAME") if environ.get(name)), None)
    if chosen == "TPU":
        said = f"{PJRT_DEVICE}=TPU is set"
    elif old is not None:
        said = f"{old} is set"
    else:
        return None
    tail = "; a TPU that is reached over the network is no longer served by torch_xla" if old else ""
    return none_found(
        f"{said}, but no TPU chip is on this machine's PCI bus, nor in /dev/accel* or /dev/vfio{tail}; "
        "choose "
        "a TPU runtime, or unset it",
        is_broken=True,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""  # a device that went away, or that may not be read: none that can be used


def this_host() -> TpuHost:
    """The real one."""
    return TpuHost(Path(os.sep))
