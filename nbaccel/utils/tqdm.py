"""A progress bar of the main rank, under the path that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.progress import (
    tqdm,
)

__all__ = [
    "tqdm",
]

__getattr__ = explain_missing(__name__)
