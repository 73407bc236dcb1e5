"""Random states, under the path that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.free_collectives import (
    set_seed,
    synchronize_rng_state,
    synchronize_rng_states,
)

__all__ = [
    "set_seed",
    "synchronize_rng_state",
    "synchronize_rng_states",
]

__getattr__ = explain_missing(__name__)
