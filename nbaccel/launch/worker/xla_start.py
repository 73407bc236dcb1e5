"""In a worker on XLA devices: the runtime is started, and the thread of each rank gets its device.

::

    main thread       start the runtime, a backward pass ──▶ own device, own rank
    replica threads   ............ wait for that ............ own device, own rank

Sent to the workers as their first task, so that its failures, its output and its time limit are those of
any task. Must not be called in the kernel.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from nbaccel.config import active_spec
from nbaccel.errors import LaunchError
from nbaccel.runtime.environment import ProcessEnvironment, take_place, thread_place


class _Runtime:
    """The runtime of this process: started once, by its main thread."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._fault: BaseException | None = None
        self.devices: list[str] = []

    def start(self, number_of_ranks: int) -> None:
        """Start it, in the main thread; in another one, wait until it has started.

        Raises:
            LaunchError: it doesn't start.
        """
        if threading.current_thread() is threading.main_thread():
            try:
                self.devices = _start(number_of_ranks)
            except Exception as error:  # noqa: BLE001  # whatever torch_xla or libtpu raise
                self._fault = error
            finally:
                self._is_over.set()
        self._is_over.wait()
        if self._fault is not None:
            raise LaunchError(_story_of(self._fault)) from self._fault


_runtime = _Runtime()


def start() -> int:
    """Make the calling thread a rank with a device.

    Returns:
        The rank: the global ordinal of its device.

    Raises:
        LaunchError: the runtime doesn't start, or has other devices than were counted on.
    """
    spec, place = active_spec(), thread_place()
    assert spec is not None
    assert place is not None
    _runtime.start(spec.num_processes)
    import torch_xla
    import torch_xla.runtime as xr

    index = place.local_rank % spec.threads_per_process
    if len(_runtime.devices) < spec.threads_per_process:
        raise LaunchError(
            f"this process has {len(_runtime.devices)} XLA devices, and {spec.threads_per_process} were "
            f"counted on for {spec.hardware}"
        )
    if spec.num_processes > 1:
        # Its own for each thread; torch_xla.device() says it from now on.
        torch_xla._XLAC._xla_set_default_device(_runtime.devices[index])  # noqa: SLF001
    ordinal = int(xr.global_ordinal()) if spec.num_processes > 1 else 0
    place = ProcessEnvironment(ordinal, ordinal, spec.num_processes, spec.num_processes)
    take_place(place)
    if spec.threads_per_process == 1:
        os.environ.update(place.to_environ())
    return ordinal


def _start(number_of_ranks: int) -> list[str]:
    """The names of this process's devices, in the order of its threads."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla._internal import pjrt

    # Internal by name; what torch_xla's own launcher calls in its children, alike in 2.8 and in 2.9.
    if number_of_ranks == 1:
        pjrt.initialize_singleprocess()
        devices: list[Any] = [torch_xla.device()]
    else:
        pjrt.initialize_multiprocess(
            int(os.environ.get("PJRT_LOCAL_PROCESS_RANK", "0")),
            int(os.environ.get("PJRT_LOCAL_PROCESS_COUNT", "1")),
        )
        devices = xm.get_xla_supported_devices()
    # autograd's threads of these devices start now, in this thread, before ranks race for them.
    torch.ones((), device=str(devices[-1]), requires_grad=True).backward()  # type: ignore[no-untyped-call]
    return [str(device) for device in devices]


def _story_of(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, ImportError):
        return f"torch_xla can't be imported in the worker: {text}"
    if "device_ready_queues_" in text:
        return (
            "a .backward() ran in this kernel before it was forked, and autograd knows no XLA device in such "
            "a fork; leave start_method out, and workers start clean"
        )
    advice = ""
    if "already in use" in text or "/dev/accel" in text or "/dev/vfio" in text:
        advice = "; another process holds the chip: end it, e.g. another notebook that uses the TPU"
    return f"the XLA runtime did not start: {text}{advice}"
