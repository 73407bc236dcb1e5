"""Collectives on nested values: gather, reduce, broadcast, pad. Containers keep their type.

Every function is collective. With one process the value comes back as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nbaccel.runtime.collectives.agreement import agree, agree_on_call
from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.nested import is_container, leaves, map_members, map_structure

REDUCTIONS = ("sum", "mean", "none")


def gather(communicator: Communicator, data: Any) -> Any:
    """Join each tensor of all ranks along the first dimension, in rank order.

    Shapes: ``[n, ...]`` on each rank becomes ``[world_size * n, ...]``; a tensor without dimensions
    becomes ``[world_size]``. The result carries no gradient.

    Raises:
        CollectiveMismatchError: the ranks pass different structures, dtypes or shapes.
        TypeError: a leaf isn't a tensor.
    """
    if communicator.world_size == 1:
        return data
    agree(communicator, "gather", data)
    return map_structure(lambda tensor: _join(communicator.all_gather(tensor)), data)


def gather_uneven(communicator: Communicator, data: Any, counts: Sequence[int] | None = None) -> Any:
    """As :func:`gather`, but ranks may differ in the first length, and padding is cut off.

    Args:
        communicator: connects the ranks.
        data: tensors, or containers of tensors.
        counts: by rank, how many of the leading samples are real. Tensors whose length isn't that
            rank's batch (a loss without dimensions, say) are left whole.
    """
    if communicator.world_size == 1:
        return data
    agreement = agree(communicator, "gather_for_metrics", data, any_length=True)
    position = iter(range(len(agreement.lengths[0])))
    batch = _batch_lengths(agreement.lengths)

    def join(tensor: torch.Tensor) -> torch.Tensor:
        index = next(position)
        lengths = [row[index] for row in agreement.lengths]
        if tensor.ndim == 0:
            return _join(communicator.all_gather(tensor))
        longest = max(lengths)
        blocks = communicator.all_gather(_pad_to(tensor, longest, 0, 0, pad_first=False))
        keep = lengths
        if counts is not None and lengths == batch:
            keep = [min(length, count) for length, count in zip(lengths, counts, strict=True)]
        if all(length == longest for length in keep):
            return _join(blocks)
        return communicator.leading(blocks, keep)

    return map_structure(join, data)


def _batch_lengths(lengths: list[list[int]]) -> list[int]:
    """By rank: the length of the first tensor that has one. It stands for the batch."""
    first = next((i for i, length in enumerate(lengths[0]) if length >= 0), None)
    return [] if first is None else [row[first] for row in lengths]


def _join(stacked: torch.Tensor) -> torch.Tensor:
    return stacked if stacked.ndim == 1 else stacked.flatten(0, 1)


def gather_objects_by_rank(communicator: Communicator, value: Any) -> list[Any]:
    """The picklable values of all ranks, by rank."""
    if communicator.world_size == 1:
        return [value]
    agree_on_call(communicator, "gather_object")
    return communicator.all_gather_object(value)


def gather_object(communicator: Communicator, value: Any) -> Any:
    """Join the lists of all ranks, in rank order. Anything picklable may be in them.

    A value that isn't a list or tuple counts as a list of one. With one process it comes back as it is.
    """
    if communicator.world_size == 1:
        return value
    joined: list[Any] = []
    for part in gather_objects_by_rank(communicator, value):
        if isinstance(part, (list, tuple)):
            joined.extend(part)
        else:
            joined.append(part)
    return joined


def broadcast(communicator: Communicator, data: Any, from_process: int = 0) -> Any:
    """Overwrite each tensor with that of rank ``from_process``, in place, and return ``data``.

    Raises:
        CollectiveMismatchError: the ranks pass different structures, dtypes or shapes.
        ValueError: there is no such rank.
    """
    _check_rank(communicator, from_process)
    if communicator.world_size == 1:
        return data
    agree(communicator, "broadcast", data, detail=f"from_process={from_process}")
    for _, tensor in leaves(data):
        communicator.broadcast(tensor, from_process)
    return data


def broadcast_object_list(communicator: Communicator, values: list[Any], from_process: int = 0) -> list[Any]:
    """Overwrite the entries of ``values`` with those of rank ``from_process``, in place, and return it."""
    _check_rank(communicator, from_process)
    if communicator.world_size > 1:
        agree_on_call(communicator, "broadcast_object_list", f"from_process={from_process}")
        values[:] = communicator.broadcast_object(list(values), from_process)
    return values


def _check_rank(communicator: Communicator, rank: int) -> None:
    if not 0 <= rank < communicator.world_size:
        raise ValueError(f"from_process={rank} is no rank: there are {communicator.world_size} processes")


def reduce(communicator: Communicator, data: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Combine each tensor of all ranks element by element.

    Args:
        communicator: connects the ranks.
        data: tensors of one shape on all ranks, or containers of them.
        reduction: ``"sum"``, ``"mean"`` (the sum divided by the number of ranks; of whole numbers, a
            float32) or ``"none"`` (nothing happens).
        scale: the result is multiplied by it.

    Half-precision values are added up in float32.

    Raises:
        CollectiveMismatchError: the ranks pass different structures, dtypes or shapes.
        ValueError: an unknown reduction.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r} is not known; choose one of {', '.join(REDUCTIONS)}")
    if reduction == "none":
        return data
    if communicator.world_size > 1:
        agree(communicator, "reduce", data, detail=f"{reduction}, {scale}")

    def combine(tensor: torch.Tensor) -> torch.Tensor:
        half = tensor.dtype in (torch.float16, torch.bfloat16)
        total = communicator.all_reduce_sum(tensor.float() if half else tensor)
        # Not ReduceOp.AVG: gloo lacks it, or gets it wrong, depending on the version.
        if reduction == "mean":
            total = total / communicator.world_size
        if scale != 1.0:
            total = total * scale
        return total.to(tensor.dtype) if half else total

    return map_structure(lambda leaf: combine(leaf) if isinstance(leaf, torch.Tensor) else leaf, data)


def pad_across_processes(
    communicator: Communicator, data: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False
) -> Any:
    """Pad each tensor along ``dim`` to the longest among the ranks, so that they can be gathered.

    Args:
        communicator: connects the ranks.
        data: tensors, or containers of tensors. A tensor that has no dimension ``dim`` stays as it is.
        dim: the dimension to pad.
        pad_index: the value to pad with.
        pad_first: pad in front.
    """
    if communicator.world_size == 1:
        return data
    agree_on_call(communicator, "pad_across_processes", f"dim={dim}")
    tensors = [leaf for _, leaf in leaves(data) if isinstance(leaf, torch.Tensor)]
    own = [t.shape[dim] if -t.ndim <= dim < t.ndim else -1 for t in tensors]
    longest = [max(sizes) for sizes in zip(*communicator.all_gather_object(own), strict=True)]
    position = iter(longest)

    def pad(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        length = next(position)
        return leaf if length < 0 else _pad_to(leaf, length, dim, pad_index, pad_first)

    return map_structure(pad, data)


def _pad_to(tensor: torch.Tensor, length: int, dim: int, pad_index: float, pad_first: bool) -> torch.Tensor:
    missing = length - tensor.shape[dim]
    if missing == 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    padding = tensor.new_full(shape, pad_index)
    return torch.cat([padding, tensor] if pad_first else [tensor, padding], dim=dim)


def gather_for_metrics(
    communicator: Communicator, data: Any, counts: Sequence[int] | None, use_gather_object: bool = False
) -> Any:
    """Gather one result per sample, in the order of the data, without the samples that padding doubled.

    Args:
        communicator: connects the ranks.
        data: tensors, objects, or containers of them. A list (or tuple) that holds anything but
            tensors is one object per sample.
        counts: by rank, the real samples of the running batch; None when all are real.
        use_gather_object: treat ``data`` as a list of objects whatever it holds.
    """
    if communicator.world_size == 1:
        return data if counts is None else _real_ones(communicator, data, counts[0], use_gather_object)
    if not use_gather_object and all(isinstance(leaf, torch.Tensor) for _, leaf in leaves(data)):
        return gather_uneven(communicator, data, counts)
    if not use_gather_object and is_container(data) and not isinstance(data, (list, tuple)):
        return map_members(lambda item: gather_for_metrics(communicator, item, counts), data)
    joined: list[Any] = []
    for rank, part in enumerate(gather_objects_by_rank(communicator, data)):
        samples = list(part) if isinstance(part, (list, tuple)) else [part]
        joined.extend(samples if counts is None else samples[: counts[rank]])
    return joined


def _real_ones(communicator: Communicator, data: Any, count: int, as_objects: bool) -> Any:
    """What a lone rank gathers of a batch that was filled up: its first ``count`` samples."""
    length = next((int(t.shape[0]) for _, t in leaves(data) if isinstance(t, torch.Tensor) and t.ndim), -1)
    if as_objects or not all(isinstance(leaf, torch.Tensor) for _, leaf in leaves(data)):
        if not as_objects and is_container(data) and not isinstance(data, (list, tuple)):
            return map_members(lambda item: _real_ones(communicator, item, count, as_objects), data)
        return data[:count] if isinstance(data, (list, tuple)) else data

    def trim(tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor.ndim == 0 or tensor.shape[0] != length
        return tensor if whole else communicator.leading(tensor.unsqueeze(0), [count])

    return map_structure(trim, data)
