"""The prepared optimizer, under the name that scripts import."""

from __future__ import annotations

from nbaccel.runtime.optimizer import (
    AcceleratedOptimizer,
)

__all__ = [
    "AcceleratedOptimizer",
]
