"""Memory and load of workers and their accelerators, seen from outside: no worker is asked, none is slowed.

Never opens a device: of accelerators only what the driver's library tells at once is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import psutil

from nbaccel.config import LaunchSpec
from nbaccel.launch import devices
from nbaccel.launch.devices import Usage
from nbaccel.launch.group.member import Member
from nbaccel.launch.progress.model import RankRow

DEVICES_EVERY = 2.0
"""Seconds between two looks at the accelerators."""


@dataclass
class _Process:
    handle: psutil.Process
    cpu_seconds: float
    looked_at: float
    memory: int | None = None
    load: float | None = None


class Resources:
    """What the ranks of one task use."""

    def __init__(self, spec: LaunchSpec, environ: Mapping[str, str]) -> None:
        """Nothing is looked at yet.

        Args:
            spec: what the ranks run on.
            environ: the environment in which its devices are counted.
        """
        self._spec = spec
        self._environ = environ
        self._processes: dict[int, _Process] = {}
        self._usage: tuple[Usage | None, ...] = ()
        self._devices_at = float("-inf")
        self._asks_devices = spec.device_type == "cuda" and bool(spec.devices)

    def sample(self, members: Iterable[Member], now: float) -> None:
        """Look once. Load is that since the look before."""
        for member in members:
            if not member.has_exited:
                self._look_at(member, now)
        if self._asks_devices and now - self._devices_at >= DEVICES_EVERY:
            self._devices_at = now
            usage = devices.usage_at_once(self._environ)
            self._asks_devices = usage is not None
            self._usage = usage or ()

    def added_to(self, row: RankRow) -> RankRow:
        """``row`` with what was seen last of its rank."""
        process = self._processes.get(row.rank)
        if process is not None:
            row = replace(row, memory=process.memory, load=process.load)
        usage = self._usage_of(row.rank)
        if usage is not None:
            row = replace(row, device_memory=(usage.memory_used, usage.memory_total), device_load=usage.load)
        return row

    def _look_at(self, member: Member, now: float) -> None:
        known = self._processes.get(member.rank)
        try:
            handle = psutil.Process(member.process.pid) if known is None else known.handle
            with handle.oneshot():
                memory = handle.memory_info().rss
                times = handle.cpu_times()
        except psutil.Error:
            return  # it is about to end; what was seen last stays
        used = times.user + times.system
        if known is None:
            self._processes[member.rank] = _Process(handle, used, now, memory)
            return
        if now > known.looked_at:
            known.load = max(0.0, used - known.cpu_seconds) / (now - known.looked_at)
        known.cpu_seconds, known.looked_at, known.memory = used, now, memory

    def _usage_of(self, rank: int) -> Usage | None:
        local = rank - self._spec.node_rank * self._spec.num_processes
        if not 0 <= local < len(self._spec.devices):
            return None
        index = self._spec.devices[local]
        return self._usage[index] if index < len(self._usage) else None
