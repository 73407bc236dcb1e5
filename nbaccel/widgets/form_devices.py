"""What the form shows of the machine: devices with their names, memory in use and load, as texts.

Nothing here opens a device: names and figures come from :mod:`nbaccel.launch.devices`, and where only a
process of its own could tell how busy a device is, it isn't asked again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import psutil

from nbaccel.launch import devices
from nbaccel.launch.devices import Accelerators, Usage
from nbaccel.launch.devices.model import none_found
from nbaccel.launch.system import process

PERIOD_S = 2.0
"""Seconds between two looks."""

_GIB = 2**30


def look() -> Accelerators:
    """The accelerators, or none with the reason why they can't be told."""
    try:
        return devices.visible_accelerators()
    except RuntimeError as error:
        return none_found(str(error))


def device_labels(found: Accelerators) -> tuple[str, ...]:
    """``cuda:0  NVIDIA A100-SXM4-80GB`` for each unit."""
    return tuple(f"{found.platform}:{unit.index}  {unit.name}" for unit in found.units)


def usage_texts(found: Accelerators) -> tuple[str, ...]:
    """``1.0 of 80.0 GiB in use, load 35 %`` for each unit; empty where nobody can tell at once."""
    try:
        told: Sequence[Usage | None] = devices.usage_at_once() or ()
    except RuntimeError:
        told = ()
    if len(told) != found.count:
        return ("",) * found.count
    return tuple("" if each is None else _busy(each) for each in told)


def cpu_text() -> str:
    """``2 cores, 11.5 of 23.5 GiB memory in use, load 35 %``."""
    cores, memory = process.usable_cores(), psutil.virtual_memory()
    used = Usage(memory.total - memory.available, memory.total, psutil.cpu_percent() / 100)
    return f"{cores} core{'s' if cores != 1 else ''}, {_busy(used)}"


def _busy(used: Usage) -> str:
    text = f"{used.memory_used / _GIB:.1f} of {used.memory_total / _GIB:.1f} GiB in use"
    return text if used.load is None else f"{text}, load {used.load:.0%}"


class Watch:
    """A thread that looks again and again, until it is stopped; it never keeps the process alive."""

    def __init__(self, look_once: Callable[[], None], period_s: float = PERIOD_S) -> None:
        """Start.

        Args:
            look_once: called in the thread; an error in it ends the watch.
            period_s: seconds between two calls.
        """
        self._look_once = look_once
        self._period_s = period_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nbaccel-form-watch", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive() and not self._stopped.is_set()

    def stop(self) -> None:
        """No look begins after this."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._period_s):
            self._look_once()
