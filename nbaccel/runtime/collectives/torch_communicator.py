"""The primitives over torch.distributed's default process group.

It asks for the default group at each call and stores none, so that it goes on working when the
group is ended and made anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nbaccel.runtime.collectives import objects
from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.collectives.rollcall import roll_call
from nbaccel.runtime.collectives.served import served_device_types

# Types that every backend can add up. Others take a detour through one that holds all their values.
_SUMMABLE = frozenset({torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8})

# torch 2.13 renamed it, and warns about the old name.
_all_gather_single: Callable[[torch.Tensor, torch.Tensor], Any] = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)


DEBUG_VARIABLE = "NBACCEL_DEBUG_MODE"
"""Set it to 1 to be told which ranks didn't come to a collective, at the price of a round trip for each."""


class TorchCommunicator(Communicator):
    """Ranks are processes, and torch.distributed connects them."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.debug = os.environ.get(DEBUG_VARIABLE, "").lower() in {"1", "true", "yes", "on"}
        self.rank = rank
        self.world_size = world_size
        self.device = device

    @property
    def backend(self) -> str:
        return str(dist.get_backend())

    def announce(self, operation: str) -> None:
        if self.debug:
            roll_call(operation)

    def barrier(self) -> None:
        if self.device.type == "cpu":
            dist.barrier()
        else:
            dist.barrier(device_ids=[self.device.index])

    def bounded_barrier(self, operation: str, timeout: timedelta) -> None:
        roll_call(operation, timeout)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        source = _dense(tensor)
        gathered = source.new_empty((self.world_size, *source.shape))
        if source.numel():
            # As bytes: backends know few dtypes, but every dtype is bytes.
            raw, travel = _as_bytes(source), self._travel_device(source)
            if travel == source.device:
                _all_gather_single(_as_bytes(gathered), raw)
            else:
                staged = torch.empty(self.world_size * raw.numel(), dtype=torch.uint8, device=travel)
                _all_gather_single(staged, raw.to(travel))
                _as_bytes(gathered).copy_(staged)
        return gathered

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        dense = _dense(tensor)
        if dense.is_complex():
            return torch.view_as_complex(self.all_reduce_sum(torch.view_as_real(dense)))
        wide = dense.dtype
        if wide not in _SUMMABLE:
            wide = torch.float32 if dense.is_floating_point() else torch.int64
        total = dense.to(device=self._travel_device(dense), dtype=wide, copy=True)
        if total.numel():
            dist.all_reduce(total)
        # A sum of flags is a count.
        narrow = torch.int64 if dense.dtype is torch.bool else dense.dtype
        return total.to(device=dense.device, dtype=narrow)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        if not tensor.numel():
            return
        travel = self._travel_device(tensor)
        if tensor.is_contiguous() and travel == tensor.device:
            dist.broadcast(_as_bytes(tensor.detach()), src=source)
            return
        staged = _dense(tensor).to(travel).contiguous()
        dist.broadcast(_as_bytes(staged), src=source)
        with torch.no_grad():
            tensor.copy_(staged)

    def scatter(self, buffer: torch.Tensor, pieces: list[torch.Tensor] | None, source: int) -> None:
        dist.scatter(buffer, pieces, src=source)

    def all_gather_object(self, value: Any) -> list[Any]:
        return objects.all_gather_object(value)

    def broadcast_object(self, value: Any, source: int) -> Any:
        return objects.broadcast_object(value, source)

    def _travel_device(self, tensor: torch.Tensor) -> torch.device:
        """Where the bytes of ``tensor`` must lie for the group to carry them."""
        if tensor.device.type == self.device.type or tensor.device.type in served_device_types():
            return tensor.device
        return self.device


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Without autograd, strides and lazy conjugation."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
