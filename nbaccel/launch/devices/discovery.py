"""What this machine has to compute on, found without opening a device in this process.

::

    a TPU, and torch_xla for it ──────────────────────────────▶ what the bus and the environment say
    torch built for the CPU only ────────────────────────────▶ none
    NVIDIA: NVML answers, and its counting is CUDA's ────────▶ NVML's answer
    everything else (MIG, mixed models, ROCm, XPU, MPS) ─────▶ torch, asked in a process of its own

NVML counts in bus order, CUDA by default the fastest first: with different models in one machine the
two differ, unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. Of a GPU in MIG mode CUDA shows parts, which NVML
counts otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from nbaccel.launch.devices import tpu, visibility
from nbaccel.launch.devices.model import Accelerators, Unit, Usage, none_found
from nbaccel.launch.devices.nvml import Nvml, NvmlError, PhysicalGpu
from nbaccel.launch.devices.system import Build, Machine, ThisMachine


class Discovery:
    """Answers about one machine. Remembers what is there, never how busy it is."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._remembered: dict[tuple[str | None, ...], Accelerators] = {}

    @property
    def build(self) -> Build:
        """What torch was built for."""
        return self._machine.build()

    def look(self, environ: Mapping[str, str]) -> Accelerators:
        """The accelerators that a fresh process with this environment would see.

        Raises:
            RuntimeError: torch was asked and did not answer.
        """
        key = tuple(environ.get(name) for name in (*visibility.DECIDING_NAMES, *tpu.DECIDING_NAMES))
        if key not in self._remembered:
            found = self._find(environ)
            if found.is_broken:
                return found  # it may be mended while this process lives: a package installed
            self._remembered[key] = found
        return self._remembered[key]

    def usage(self, environ: Mapping[str, str]) -> tuple[Usage | None, ...]:
        """How busy each of :meth:`look`'s units is now; None for one that nobody can tell about.

        Raises:
            RuntimeError: torch was asked and did not answer.
        """
        found = self.look(environ)
        told = self.usage_at_once(environ)
        if told is not None:
            return told
        if found.count == 0 or found.device_type in ("mps", "xla", "tpu"):
            # An Apple GPU's memory is the machine's; a TPU tells nothing before it is opened.
            return (None,) * found.count
        answer = self._machine.ask_torch(found.device_type, environ, want_memory=True)
        by_index = dict(zip((unit.index for unit in answer.units), answer.usage, strict=True))
        return tuple(by_index.get(unit.index) for unit in found.units)

    def usage_at_once(self, environ: Mapping[str, str]) -> tuple[Usage | None, ...] | None:
        """As :meth:`usage`, in milliseconds; None where only torch could tell, in a process of its own.

        Raises:
            RuntimeError: torch was asked what there is and did not answer.
        """
        found = self.look(environ)
        library = self._machine.nvml()
        if library is None or found.platform != "cuda" or not all(unit.uuid for unit in found.units):
            return None
        try:
            with Nvml(library) as nvml:
                return tuple(nvml.usage(unit.uuid) for unit in found.units)
        except NvmlError:
            return None

    # --- inside -------------------------------------------------------------------------------

    def _find(self, environ: Mapping[str, str]) -> Accelerators:
        xla = self._machine.tpu(environ)
        if xla is not None and xla.count:
            return xla
        build = self.build
        if build.platform == "cpu":
            return xla or none_found("the installed torch is a build for the CPU only")
        if build.platform == "cuda":
            found = self._find_cuda(build, environ)
            return found if found.count or xla is None else xla
        if not self._machine.has_driver(build.platform):
            return xla or none_found(f"no {build.platform} driver is installed here")
        return self._ask_torch(build, environ)

    def _find_cuda(self, build: Build, environ: Mapping[str, str]) -> Accelerators:
        text = environ.get(visibility.CUDA)
        entries = visibility.cuda_entries(text)
        if entries == ():
            return none_found(f"{visibility.CUDA}={text!r} hides every GPU")
        try:
            gpus, driver_major = self._ask_nvml()
        except NvmlError:
            if not self._machine.has_driver("cuda"):
                return none_found("no NVIDIA driver is installed here")
            return self._ask_torch(build, environ)
        if not gpus:
            return none_found("the NVIDIA driver finds no GPU")
        if driver_major < _major(build.version) or not _counts_alike(gpus, entries, environ):
            return self._ask_torch(build, environ)
        indices = visibility.visible_indices(entries, [gpu.uuid for gpu in gpus])
        if not indices:
            return none_found(f"{visibility.CUDA}={text!r} names none of the {len(gpus)} GPUs that are here")
        units = (
            Unit(number, gpus[at].name, gpus[at].uuid, gpus[at].capability)
            for number, at in enumerate(indices)
        )
        return Accelerators("cuda", "cuda", tuple(units))

    def _ask_nvml(self) -> tuple[tuple[PhysicalGpu, ...], int]:
        library = self._machine.nvml()
        if library is None:
            raise NvmlError("nvidia-ml-py is not installed")
        with Nvml(library) as nvml:
            return nvml.gpus(), nvml.driver_cuda_major()

    def _ask_torch(self, build: Build, environ: Mapping[str, str]) -> Accelerators:
        answer = self._machine.ask_torch(build.device_type, environ, want_memory=False)
        if answer.units:
            return Accelerators(build.device_type, build.platform, answer.units)
        # A driver without a usable device often has a tale to tell: too old, another version loaded.
        complaint = answer.complaint.split("(Triggered", 1)[0].strip()
        is_broken = build.platform == "cuda" and bool(complaint) and "no NVIDIA driver" not in complaint
        return none_found(complaint or f"torch sees no {build.platform} device here", is_broken=is_broken)


def _counts_alike(
    gpus: Sequence[PhysicalGpu], entries: Sequence[str] | None, environ: Mapping[str, str]
) -> bool:
    """Whether CUDA would count the same devices in the same order."""
    if visibility.has_mig(entries) or any(gpu.is_split for gpu in gpus):
        return False
    if not visibility.has_numbers(entries):
        return True
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdecimal() else 0


_discovery = Discovery(ThisMachine())


def visible_accelerators(environ: Mapping[str, str] | None = None) -> Accelerators:
    """What a fresh process with this environment (default: the present one) would compute on.

    Raises:
        RuntimeError: torch was asked in a process of its own and did not answer.
    """
    return _discovery.look(os.environ if environ is None else environ)


def usage(environ: Mapping[str, str] | None = None) -> tuple[Usage | None, ...]:
    """How busy each of :func:`visible_accelerators` is at this moment, by index.

    None stands for one that nobody can tell about.

    Raises:
        RuntimeError: torch was asked in a process of its own and did not answer.
    """
    return _discovery.usage(os.environ if environ is None else environ)


def usage_at_once(environ: Mapping[str, str] | None = None) -> tuple[Usage | None, ...] | None:
    """As :func:`usage`, for whoever looks again and again: None where it would take seconds."""
    return _discovery.usage_at_once(os.environ if environ is None else environ)


def worker_environ(
    device_type: str, chosen: Sequence[int], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What workers need in their environment to see the chosen devices, counted from 0, and no others.

    Args:
        device_type: torch's name of the kind.
        chosen: device numbers as this process counts them; none on the CPU.
        environ: what the workers' environment is otherwise (default: the present one).

    Raises:
        ValueError: the variable that is set already can't be narrowed.
    """
    if device_type in ("cpu", "xla") or not chosen:
        return {}  # what XLA's processes need differs from one to the next: nbaccel.launch.group.xla's
    source = os.environ if environ is None else environ
    found = _discovery.look(source)
    return visibility.narrowed(found.platform, source, chosen, found.count)


def platform_name(device_type: str) -> str:
    """What to call a device type in a message: ``rocm`` where torch's ``cuda`` means AMD's GPUs."""
    return "rocm" if device_type == "cuda" and _discovery.build.platform == "rocm" else device_type
