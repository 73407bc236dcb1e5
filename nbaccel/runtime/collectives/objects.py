"""Objects over torch.distributed's default process group.

``torch.distributed`` has the same, by way of numpy, which a plain installation needn't have. Here a pickle
stays where it was written: the tensor that is sent, and the one that is received into, are views of bytes.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist

from nbaccel.runtime.collectives.served import travel_device


def all_gather_object(value: Any) -> list[Any]:
    """Every rank's ``value``, which must pickle, by rank. Collective."""
    packed, device = packed_object(value), travel_device()
    size = torch.tensor([packed.numel()], dtype=torch.int64, device=device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    lengths = [int(each) for each in sizes]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: packed.numel()].copy_(packed)
    rows = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(rows, padded)
    return [unpacked_object(row[:length]) for row, length in zip(rows, lengths, strict=True)]


def broadcast_object(value: Any, source: int) -> Any:
    """Rank ``source``'s ``value``, which must pickle; those of other ranks are of no interest. Collective."""
    own, device = dist.get_rank() == source, travel_device()
    packed = packed_object(value if own else None)
    size = torch.tensor([packed.numel()], dtype=torch.int64, device=device)
    dist.broadcast(size, src=source)
    sent = packed.to(device) if own else torch.empty(int(size), dtype=torch.uint8, device=device)
    dist.broadcast(sent, src=source)
    return value if own else unpacked_object(sent)


def packed_object(value: Any) -> torch.Tensor:
    """The pickle of ``value``: uint8, 1-dimensional, on the host."""
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def unpacked_object(packed: torch.Tensor) -> Any:
    """What :func:`packed_object` packed; ``packed`` may lie on any device."""
    received = bytearray(packed.numel())
    torch.frombuffer(received, dtype=torch.uint8).copy_(packed)
    return pickle.loads(received)
