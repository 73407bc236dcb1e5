"""What is known of a model, under the path that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.modules import (
    find_tied_parameters,
    retie_parameters,
)

__all__ = [
    "find_tied_parameters",
    "retie_parameters",
]

__getattr__ = explain_missing(__name__)
