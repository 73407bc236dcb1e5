"""Versions of libraries, under the path that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.surroundings import (
    compare_versions,
    is_torch_version,
)

__all__ = [
    "compare_versions",
    "is_torch_version",
]

__getattr__ = explain_missing(__name__)
