"""What a worker is and does, for people to read."""

from __future__ import annotations

import time
from typing import Any

import psutil

from nbaccel.config import LaunchSpec
from nbaccel.launch.group.member import Member
from nbaccel.launch.traces.whereabouts import describe_place


def status_of(member: Member, spec: LaunchSpec) -> dict[str, Any]:
    """Rank, pid, device, memory in bytes (None when it has ended), what it does, since when in seconds.

    Args:
        member: a worker that has been asked for its whereabouts.
        spec: what its group runs on.
    """
    memory: int | None = None
    try:
        memory = psutil.Process(member.process.pid).memory_info().rss
    except psutil.Error:
        memory = None  # it has ended
    where = member.whereabouts
    if member.has_exited:
        doing = "has ended"
    elif where is None or not where.filename:
        doing = "idle"
    else:
        place = describe_place(where.filename, where.line)
        doing = f"waits in {where.waits_in} at {place}" if where.waits_in else f"runs {place}"
    device = spec.device_type
    if spec.devices:
        device = f"{device}:{spec.devices[member.rank]}"
    return {
        "rank": member.rank,
        "pid": member.process.pid,
        "device": device,
        "memory": memory,
        "doing": doing,
        "since": time.monotonic() - member.task_began,
    }
