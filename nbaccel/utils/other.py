"""Helpers of many kinds, under the path that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.free_collectives import (
    load,
    save,
    wait_for_everyone,
)
from nbaccel.runtime.modules import (
    extract_model_from_parallel,
    is_compiled_module,
    recursive_getattr,
)
from nbaccel.runtime.surroundings import (
    convert_bytes,
    is_port_in_use,
    merge_dicts,
)

__all__ = [
    "convert_bytes",
    "extract_model_from_parallel",
    "is_compiled_module",
    "is_port_in_use",
    "load",
    "merge_dicts",
    "recursive_getattr",
    "save",
    "wait_for_everyone",
]

__getattr__ = explain_missing(__name__)
