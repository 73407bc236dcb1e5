"""Calls that a session makes for itself, run in its workers like any other."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def nothing() -> None:
    """Bring the workers up."""


def set_names(names: Mapping[str, Any]) -> None:
    """Set names in ``__main__``."""
    vars(sys.modules["__main__"]).update(names)


def get_name(name: str) -> Any:
    """The value of a name in ``__main__``, without what ``prepare`` put around it.

    Raises:
        NameError: there is no such name.
    """
    namespace = vars(sys.modules["__main__"])
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined on the workers", name=name)
    return unwrapped(namespace[name])


def unwrapped(value: Any) -> Any:
    """A prepared model, optimizer, scheduler or loader as it was; anything else as it is."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        from nbaccel.runtime.modules import extract_model_from_parallel

        return extract_model_from_parallel(value, keep_fp32_wrapper=False)
    from nbaccel.runtime.data.loader import PreparedLoader
    from nbaccel.runtime.optimizer import AcceleratedOptimizer
    from nbaccel.runtime.scheduler import AcceleratedScheduler

    if isinstance(value, AcceleratedOptimizer):
        return value.optimizer
    if isinstance(value, AcceleratedScheduler):
        return value.scheduler
    if isinstance(value, PreparedLoader):
        return value.source
    return value
