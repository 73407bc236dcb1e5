"""The prepared optimizer, under the name that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.optimizer import (
    AcceleratedOptimizer,
)

__all__ = [
    "AcceleratedOptimizer",
]

__getattr__ = explain_missing(__name__)
