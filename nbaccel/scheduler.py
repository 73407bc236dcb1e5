"""The prepared scheduler, under the name that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.scheduler import (
    AcceleratedScheduler,
)

__all__ = [
    "AcceleratedScheduler",
]

__getattr__ = explain_missing(__name__)
