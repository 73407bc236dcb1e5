"""The prepared scheduler, under the name that scripts import."""

from __future__ import annotations

from nbaccel.runtime.scheduler import (
    AcceleratedScheduler,
)

__all__ = [
    "AcceleratedScheduler",
]
