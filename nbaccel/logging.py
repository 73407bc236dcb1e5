"""Loggers for several processes, under the name that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.log import (
    MultiProcessAdapter,
    get_logger,
)

__all__ = [
    "MultiProcessAdapter",
    "get_logger",
]

__getattr__ = explain_missing(__name__)
