"""Memory helpers, under the path that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.memory import (
    clear_device_cache,
    find_executable_batch_size,
    release_memory,
)
from nbaccel.runtime.memory import ran_out_of_memory as should_reduce_batch_size

__all__ = [
    "clear_device_cache",
    "find_executable_batch_size",
    "release_memory",
    "should_reduce_batch_size",
]

__getattr__ = explain_missing(__name__)
