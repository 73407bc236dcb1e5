"""Loggers for several processes, under the name that scripts import."""

from __future__ import annotations

from nbaccel.runtime.log import (
    MultiProcessAdapter,
    get_logger,
)

__all__ = [
    "MultiProcessAdapter",
    "get_logger",
]
