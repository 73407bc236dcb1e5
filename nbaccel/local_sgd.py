"""Local SGD, under the name that scripts import."""

from __future__ import annotations

from nbaccel.runtime.local_sgd import (
    LocalSGD,
)

__all__ = [
    "LocalSGD",
]
