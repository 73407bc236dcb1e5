"""The process's environment, under the path that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.surroundings import (
    clear_environment,
    patch_environment,
    str_to_bool,
)

__all__ = [
    "clear_environment",
    "patch_environment",
    "str_to_bool",
]

__getattr__ = explain_missing(__name__)
