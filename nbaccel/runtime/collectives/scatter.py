"""Handing each rank a value of its own from one source: structure as an object, tensors as tensors."""

from __future__ import annotations

from typing import Any

import torch

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.nested import leaves, map_structure


class TensorSlot:
    """Stands for a tensor in a structure that travels as an object. No dataclass, which is a container."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: torch.Size, dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype


def scatter_nested(
    communicator: Communicator,
    parts: list[Any] | None,
    source: int = 0,
    device: torch.device | None = None,
) -> Any:
    """This rank's entry of ``parts``. Collective.

    Args:
        communicator: connects the ranks.
        parts: on ``source``: a value for each rank, with anything picklable and tensors in it. Ignored on
            the others.
        source: the rank that hands out.
        device: where tensors are put before they travel, and arrive; the CPU by default.
    """
    target = device or torch.device("cpu")
    rank = communicator.rank
    skeletons: Any = None
    if rank == source:
        assert parts is not None
        skeletons = [map_structure(_slot, part) for part in parts]
    skeletons = communicator.broadcast_object(skeletons, source)
    slots = [[leaf for _, leaf in leaves(s) if isinstance(leaf, TensorSlot)] for s in skeletons]
    own: list[torch.Tensor] = []
    tensors = [_tensors(part) for part in parts] if parts is not None and rank == source else []
    for index in range(max(map(len, slots))):
        wanted = [row[index] if index < len(row) else None for row in slots]
        like = wanted[rank]
        column = [t[index].to(target) if index < len(t) else None for t in tensors]
        got = _scatter_column(communicator, column, wanted, source, target)
        if like is not None:
            own.append(got)
    fill = iter(own)
    return map_structure(lambda leaf: next(fill) if isinstance(leaf, TensorSlot) else leaf, skeletons[rank])


def _scatter_column(
    communicator: Communicator,
    column: list[torch.Tensor | None],
    wanted: list[TensorSlot | None],
    source: int,
    device: torch.device,
) -> torch.Tensor:
    sizes = [0 if w is None else w.shape.numel() * w.dtype.itemsize for w in wanted]
    longest = max(sizes)
    mine = wanted[communicator.rank]
    buffer = torch.empty(longest, dtype=torch.uint8, device=device)
    pieces = [_padded_bytes(t, longest, device) for t in column] if communicator.rank == source else None
    if longest:
        communicator.scatter(buffer, pieces, source)
    if mine is None:
        return buffer
    return buffer[: sizes[communicator.rank]].view(mine.dtype).view(mine.shape)


def _padded_bytes(tensor: torch.Tensor | None, length: int, device: torch.device) -> torch.Tensor:
    if tensor is None:
        return torch.zeros(length, dtype=torch.uint8, device=device)
    raw = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    return raw if raw.numel() == length else torch.nn.functional.pad(raw, (0, length - raw.numel()))


def _slot(leaf: Any) -> Any:
    return TensorSlot(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
