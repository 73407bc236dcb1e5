"""One collection, cut into a contiguous part for each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, Subset

from nbaccel.runtime.nested import honor_type, is_namedtuple


def share_of(length: int, world: int, rank: int) -> range:
    """The indices that ``rank`` gets of ``length``: contiguous, disjoint, complete, sizes within one."""
    size, more = divmod(length, world)
    start = rank * size + min(rank, more)
    return range(start, start + size + int(rank < more))


def split_evenly(inputs: Any, world: int, rank: int, *, apply_padding: bool = False) -> Any:
    """This rank's part of ``inputs``, of the same type.

    Args:
        inputs: a list, tuple, tensor (along its first dimension), data set, or a mapping of such of equal
            lengths.
        world: number of ranks.
        rank: this rank.
        apply_padding: give every rank ``ceil(length / world)`` elements, repeating the last element.

    Raises:
        TypeError: ``inputs`` can't be cut.
        ValueError: the values of a mapping differ in length.
    """
    if world == 1:
        return inputs
    if isinstance(inputs, Mapping):
        _check_lengths(inputs)
        parts = {
            key: split_evenly(value, world, rank, apply_padding=apply_padding)
            for key, value in inputs.items()
        }
        return parts if type(inputs) is dict else type(inputs)(parts)  # type: ignore[call-arg]
    length = _length(inputs)
    indices = list(share_of(length, world, rank))
    if apply_padding and length:
        wanted = (length + world - 1) // world
        indices += [length - 1] * (wanted - len(indices))
    return _take(inputs, indices)


def _check_lengths(inputs: Mapping[Any, Any]) -> None:
    lengths = {key: _length(value) for key, value in inputs.items() if not isinstance(value, Mapping)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the values of the mapping must have one length, but have {lengths}")


def _length(inputs: Any) -> int:
    if isinstance(inputs, str | bytes) or not hasattr(inputs, "__len__"):
        raise TypeError(
            f"can't split a {type(inputs).__name__} between processes; pass a list, tuple, tensor, data set, "
            "or a mapping of such"
        )
    return len(inputs)


def _take(inputs: Any, indices: list[int]) -> Any:
    if isinstance(inputs, torch.Tensor):
        return inputs[indices] if indices else inputs[:0]
    if hasattr(inputs, "select"):
        # A Hugging Face data set: selecting keeps its columns and costs nothing.
        return inputs.select(indices)
    if isinstance(inputs, Dataset):
        return Subset(inputs, indices)
    items = [inputs[index] for index in indices]
    if isinstance(inputs, Sequence) and not is_namedtuple(inputs) and isinstance(inputs, list | tuple):
        return honor_type(inputs, items)
    return items
