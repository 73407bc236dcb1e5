"""Accelerators of this machine: what there is, how busy it is, which of it a launch takes.

No module here ever opens a device in the process that asks.
"""

from __future__ import annotations

from nbaccel.launch.devices.discovery import (
    platform_name,
    usage,
    usage_at_once,
    visible_accelerators,
    worker_environ,
)
from nbaccel.launch.devices.model import Accelerators, Unit, Usage
from nbaccel.launch.devices.selection import IDLE, IDLE_SHARE, choose

__all__ = [
    "IDLE",
    "IDLE_SHARE",
    "Accelerators",
    "Unit",
    "Usage",
    "choose",
    "platform_name",
    "usage",
    "usage_at_once",
    "visible_accelerators",
    "worker_environ",
]
