"""Collectives and helpers that need no Accelerator: they use the runtime that was brought up last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from nbaccel.runtime import rng
from nbaccel.runtime.checkpoints.host import on_host
from nbaccel.runtime.checkpoints.weights import save_weights
from nbaccel.runtime.collectives import operations
from nbaccel.runtime.collectives.agreement import agree_on_call
from nbaccel.runtime.nested import recursively_apply
from nbaccel.runtime.runtime import current


def wait_for_everyone() -> None:
    """Return when every process has called it."""
    if current().environment.world_size > 1:
        agree_on_call(current().communicator, "wait_for_everyone")


def gather(tensor: Any) -> Any:
    """See :func:`nbaccel.runtime.collectives.operations.gather`."""
    return operations.gather(current().communicator, tensor)


def gather_object(object: Any) -> Any:  # noqa: A002
    """See :func:`nbaccel.runtime.collectives.operations.gather_object`."""
    return operations.gather_object(current().communicator, object)


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """See :func:`nbaccel.runtime.collectives.operations.broadcast`."""
    return operations.broadcast(current().communicator, tensor, from_process)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """See :func:`nbaccel.runtime.collectives.operations.broadcast_object_list`."""
    return operations.broadcast_object_list(current().communicator, object_list, from_process)


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """See :func:`nbaccel.runtime.collectives.operations.reduce`."""
    return operations.reduce(current().communicator, tensor, reduction, scale)


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
    """See :func:`nbaccel.runtime.collectives.operations.pad_across_processes`."""
    return operations.pad_across_processes(current().communicator, tensor, dim, pad_index, pad_first)


def pad_input_tensors(tensor: Any, batch_size: int, num_processes: int, dim: int = 0) -> Any:
    """Pad each tensor along ``dim`` with its last entry, so that ``num_processes`` divides the length.

    Args:
        tensor: tensors of length ``batch_size`` along ``dim``, or containers of them.
        batch_size: that length.
        num_processes: the divisor.
        dim: the dimension to pad.
    """
    missing = -batch_size % num_processes

    def pad(leaf: torch.Tensor) -> torch.Tensor:
        if missing == 0:
            return leaf
        last = leaf.narrow(dim, leaf.shape[dim] - 1, 1)
        return torch.cat([leaf, *[last] * missing], dim=dim)

    return recursively_apply(pad, tensor, error_on_other_type=True)


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python's, NumPy's and torch's generators.

    Args:
        seed: the seed.
        device_specific: add the rank, so that ranks draw different numbers.
        deterministic: have torch use deterministic algorithms only.
    """
    offset = current().environment.rank if device_specific else 0
    current().kind.seed(rng.set_seed(seed, offset, deterministic))


def synchronize_rng_state(rng_type: Any = None, generator: torch.Generator | None = None) -> None:
    """Give all ranks rank 0's state of one generator; see :func:`nbaccel.runtime.rng.synchronize`."""
    synchronize_rng_states([rng_type], generator)


def synchronize_rng_states(rng_types: list[Any], generator: torch.Generator | None = None) -> None:
    """Give all ranks rank 0's state of several generators; see :func:`nbaccel.runtime.rng.synchronize`."""
    runtime = current()
    kinds = [str(getattr(kind, "value", kind)) for kind in rng_types]
    rng.synchronize(runtime.communicator, kinds, runtime.device, generator)


def save(obj: Any, f: Any, save_on_each_node: bool = False, safe_serialization: bool = False) -> None:
    """Write ``obj`` to ``f`` on the main process only, or on the main process of each node.

    Args:
        obj: anything torch.save takes; a state dict of tensors with ``safe_serialization``.
        f: the file.
        save_on_each_node: for nodes that share no file system.
        safe_serialization: as safetensors.
    """
    environment = current().environment
    if (environment.local_rank if save_on_each_node else environment.rank) != 0:
        return
    if safe_serialization:
        save_weights(obj, f)
    else:
        torch.save(on_host(obj), f)


def load(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """As :func:`torch.load`, safely: ``weights_only`` unless said otherwise."""
    return torch.load(f, map_location=map_location, **{"weights_only": True, **kwargs})


def on_main_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``function`` to run on rank 0 only; it returns None elsewhere. Asked at each call."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if current().environment.rank == 0 else None

    return run
