"""Local SGD, under the name that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.local_sgd import (
    LocalSGD,
)

__all__ = [
    "LocalSGD",
]

__getattr__ = explain_missing(__name__)
