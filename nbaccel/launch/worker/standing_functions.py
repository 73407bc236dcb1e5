"""Calls that a session makes for itself, run in its workers like any other."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any


def nothing() -> None:
    """Bring the workers up."""


def set_names(names: Mapping[str, Any]) -> frozenset[str]:
    """Set names in ``__main__``; returns those that held something prepared and no longer do."""
    namespace = vars(sys.modules["__main__"])
    had = prepared_names(namespace, names)
    namespace.update(names)
    return had - prepared_names(namespace, had)


def prepared_names(namespace: Mapping[str, Any], names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` whose value here is what ``prepare`` gave."""
    return frozenset(name for name in names if name in namespace and is_prepared(namespace[name]))


def is_prepared(value: Any) -> bool:
    """Whether ``value`` is a model, optimizer, scheduler or loader as ``prepare`` gives it."""
    if "nbaccel.accelerator" not in sys.modules:
        return False  # nobody can have prepared anything; the runtime isn't imported to find that out
    from torch.nn import Module

    from nbaccel.runtime import replicas
    from nbaccel.runtime.data.loader import PreparedLoader
    from nbaccel.runtime.optimizer import AcceleratedOptimizer
    from nbaccel.runtime.scheduler import AcceleratedScheduler

    if isinstance(value, Module):
        return replicas.is_prepared(value)
    return isinstance(value, (AcceleratedOptimizer, AcceleratedScheduler, PreparedLoader))


def describe_displaced(names: Collection[str]) -> str:
    """What to say of names whose prepared values were replaced by ones that aren't."""
    which = ", ".join(sorted(names))
    if len(names) == 1:
        return (
            f"{which} on the workers was prepared; the one that was sent is not: accelerator.prepare(...) it "
            "again"
        )
    return (
        f"{which} on the workers were prepared; those that were sent are not: accelerator.prepare(...) them "
        "again"
    )


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
