"""Memory helpers, under the name that older scripts import; ``nbaccel.utils.memory`` is today's."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.utils.memory import clear_device_cache, find_executable_batch_size, release_memory

__all__ = [
    "clear_device_cache",
    "find_executable_batch_size",
    "release_memory",
]

__getattr__ = explain_missing(__name__)
