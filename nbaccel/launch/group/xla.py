"""Launches on XLA devices: how the ranks of a TPU host lie on processes, and what brings them up.

A TPU chip belongs to one process. Chips of most kinds are one core each: one process a rank, as
everywhere. Chips of v2 and v3 are two cores, which share a process: two ranks then are two threads of
one worker. torch_xla's CPU client with ``CPU_NUM_DEVICES=N`` is N threads of one process::

    WorkerGroup ──▶ Member (one a rank) ──▶ process 0 ──▶ main thread      local rank 0
                                                     └──▶ replica thread   local rank 1
                ──▶ ...                 ──▶ process 1 ──▶ main thread      local rank 2 ...

Each rank, thread or process, has its own channel, pipes and supervision, so that values, labels,
failures, stacks and time limits are those of any other launch. What the runtime in a worker may rely on:

* ``config.active_spec().device_type`` is ``"xla"``; ``.num_processes`` is the number of ranks,
  ``.threads_per_process`` how many of them share a process.
* The workers are forked from a process that never imported torch_xla. Their environment
  (``PJRT_DEVICE``, ``TPU_VISIBLE_CHIPS``, ``TPU_PROCESS_ADDRESSES``, ...) is complete before torch_xla is
  imported, see :func:`environ_maker`.
* Before any user code the XLA runtime was started in the process's main thread, a backward pass ran
  there, and the rank's own device was made the default of the rank's thread: ``torch_xla.device()`` is it
  (:mod:`nbaccel.launch.worker.xla_start`).
* ``ProcessEnvironment.detect()`` says the rank of the thread that asks: the global ordinal that XLA gave
  its device. Where ranks share a process ``RANK`` and ``LOCAL_RANK`` aren't set: they would be wrong for
  all threads but one.
* There is no process group: ``torch.distributed`` isn't used on XLA devices.
* ``PJRT_DEVICE=CPU`` together with ``CPU_NUM_DEVICES=N`` chooses torch_xla's CPU client: a rehearsal of the
  whole way without a TPU. Several ranks on it need a shim that only the tests have.

Must not import torch_xla in the kernel, nor call anything of it that starts its runtime.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbaccel.config import LaunchSpec
from nbaccel.errors import LaunchError
from nbaccel.launch.devices import tpu
from nbaccel.launch.devices.tpu_types import generation_named, process_bounds
from nbaccel.launch.payload import payload
from nbaccel.launch.worker import xla_start

if TYPE_CHECKING:
    from nbaccel.launch.group.group import WorkerGroup

BASE_PORT = 8476
"""Where torch_xla and libtpu begin: process N listens at this port plus N."""

_LAST_BASE_PORT = 8976

_SET_FOR_EACH_PROCESS = (
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_PORT",
    "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "CLOUD_TPU_TASK_ID",
    "PJRT_LOCAL_PROCESS_RANK",
    "PJRT_LOCAL_PROCESS_COUNT",
)
"""torch_xla only fills in what isn't set, and images of hosted notebooks set some of these for one "
"process."""


def is_used_by(spec: LaunchSpec) -> bool:
    """Whether the launch runs on XLA devices."""
    return spec.device_type == "xla"


# --- what the processes are told ------------------------------------------------------------------


def environ_maker(
    spec: LaunchSpec, environ: Mapping[str, str]
) -> Callable[[int], tuple[dict[str, str], tuple[str, ...]]]:
    """A function from a worker process's number to what its environment needs, and the names it must not
    have.

    Args:
        spec: what the launch runs on; anything but XLA devices needs nothing.
        environ: what the workers' environment is otherwise.

    Raises:
        LaunchError: the ports that the processes need are taken.
    """
    if not is_used_by(spec):
        return lambda _process: ({}, ())
    if _is_rehearsal(environ):
        own = {tpu.PJRT_DEVICE: "CPU", tpu.CPU_CORES: str(spec.threads_per_process)}
        return lambda _process: (own, _SET_FOR_EACH_PROCESS)
    processes = spec.num_processes // spec.threads_per_process
    base = _free_ports(processes) if processes > 1 else BASE_PORT
    return lambda process: (_of_chip(spec, environ, process, processes, base), _SET_FOR_EACH_PROCESS)


def _of_chip(
    spec: LaunchSpec, environ: Mapping[str, str], process: int, processes: int, base_port: int
) -> dict[str, str]:
    text = environ.get(tpu.VISIBLE_CHIPS, "").strip()
    chips = [chip.strip() for chip in text.split(",")] if text else [str(chip) for chip in range(processes)]
    told = {tpu.PJRT_DEVICE: "TPU", tpu.VISIBLE_CHIPS: chips[process]}
    bounds = process_bounds(generation_named(spec.hardware.rpartition(" ")[2]), processes)
    if bounds is not None:
        told |= {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": bounds}
    if processes > 1:
        ports = range(base_port, base_port + processes)
        told |= {
            "CLOUD_TPU_TASK_ID": str(process),
            "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{port}" for port in ports),
            "TPU_PROCESS_PORT": str(ports[process]),
            "PJRT_LOCAL_PROCESS_RANK": str(process),
            "PJRT_LOCAL_PROCESS_COUNT": str(processes),
        }
    return told


def _free_ports(count: int) -> int:
    """The first of as many ports in a row that nobody listens at. libtpu binds them itself."""
    for base in range(BASE_PORT, _LAST_BASE_PORT, count):
        if all(_is_free(port) for port in range(base, base + count)):
            return base
    raise LaunchError(
        f"the processes of a TPU meet at {count} ports in a row, and between {BASE_PORT} and "
        f"{_LAST_BASE_PORT} there are none that are free; end what listens there"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as those who will bind it do
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


# --- before anything starts -----------------------------------------------------------------------


def check_free(spec: LaunchSpec, environ: Mapping[str, str], root: Path = Path("/")) -> None:
    """Refuse a launch whose workers could not open their devices.

    Args:
        spec: what the launch runs on.
        environ: what the workers' environment is.
        root: folder in which ``proc`` is.

    Raises:
        LaunchError: this process, or another one, holds the TPU already.
    """
    if spec.device_type not in ("xla", "tpu"):
        return
    what = spec.hardware or spec.device_type
    if _runtime_runs_here():
        raise LaunchError(
            f"this kernel holds the {what} already, and a chip belongs to one process: a cell has used an "
            "XLA device (torch_xla.device(), .to('xla'), xr.world_size(), ...); restart the kernel, and use "
            "the device only inside the function that is launched"
        )
    if spec.device_type == "xla" and _is_rehearsal(environ):
        return
    for pid, name, files in _holders(root):
        if pid == str(os.getpid()):
            raise LaunchError(
                f"this kernel has {', '.join(files)} open, and a chip belongs to one process: a cell has "
                f"used the {what} (jax and tensorflow do so at their first operation); restart the kernel, "
                "and use it only inside the function that is launched"
            )
        if name.startswith("nbaccel rank"):
            raise LaunchError(
                f"the {what} is in use by workers that stay (process {pid}, {name}); %accelerate stop ends "
                "them, in the notebook that they belong to"
            )
        raise LaunchError(
            f"the {what} is in use by process {pid} ({name}), which has {', '.join(files)} open; a chip "
            "belongs to one process: end that one, or shut down the notebook that it is"
        )


def check_can_stay(spec: LaunchSpec) -> None:
    """Refuse workers that live from cell to cell where several ranks share a process.

    Raises:
        LaunchError: they do.
    """
    if spec.threads_per_process > 1:
        raise LaunchError(
            f"{spec.hardware} runs {spec.threads_per_process} ranks as threads of one process, and cells "
            "need one process a rank: use notebook_launcher(train), or one core with -n 1"
        )


def _is_rehearsal(environ: Mapping[str, str]) -> bool:
    return environ.get(tpu.PJRT_DEVICE, "").upper() == "CPU"


def _runtime_runs_here() -> bool:
    """Whether this process has started the runtime. Only asks what is imported already; starts nothing."""
    library = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    if library is not None and library._xla_runtime_is_initialized():  # noqa: SLF001  # the only way to know
        return True
    if "torch_tpu" not in sys.modules:
        return False
    module = getattr(sys.modules.get("torch"), "tpu", None)
    return bool(module is not None and module.is_initialized())


def _holders(root: Path) -> list[tuple[str, str, list[str]]]:
    """Pid, name and device files of the processes that have a chip open, as far as they may be looked at."""
    found = []
    for folder in sorted((root / "proc").glob("[0-9]*")):
        files = set()
        try:
            for entry in (folder / "fd").iterdir():
                target = str(entry.readlink())
                if target.startswith(("/dev/accel", "/dev/vfio/")) and target != "/dev/vfio/vfio":
                    files.add(target)
        except OSError:
            continue  # it has ended, or is somebody else's
        if files:
            found.append((folder.name, _name_of(folder), sorted(files)))
    return found


def _name_of(folder: Path) -> str:
    try:
        return (folder / "comm").read_text().strip()
    except OSError:
        return "which has ended"


# --- bringing up ----------------------------------------------------------------------------------


def bring_up(group: WorkerGroup, wait: Callable[[], None]) -> None:
    """Start the runtime on every worker, before anything else runs there, and learn which rank each one is.

    Which core gets which ordinal is the hardware's to say, and known only now.

    Args:
        group: workers that have done nothing yet.
        wait: supervises the task that was submitted, to its end.

    Raises:
        BaseException: as ``wait`` does; a runtime that doesn't start is a :class:`LaunchError`.
        LaunchError: the ordinals aren't those of this machine's cores.
    """
    with payload.dump_call((xla_start.start, (), {})) as call:
        group.submit(0, call, lambda _rank: True)
        wait()
    ordinals: dict[int, Any] = {m.rank: m.value.load() for m in group.members if m.value is not None}
    if sorted(ordinals.values()) != sorted(ordinals):
        raise LaunchError(
            f"XLA numbers this machine's {len(ordinals)} cores {sorted(ordinals.values())}, not from 0 on: "
            "it is one of several machines of a slice, and a launch uses the cores of one machine; run it on "
            "a TPU that is one machine"
        )
    group.renumber(ordinals)
