"""The primitives over XLA's collectives.

Three rules keep the graphs of all ranks the same, since ranks with different graphs wait for each other
for ever: what is pending is cut off before a collective, so that its own graph has only data in it; the
result is cut off after it; and no rank builds its number into a graph.

What lies on the host (objects, headers, random states) travels as whole numbers of 32 bits, which every
XLA device can add and gather, in lengths that are powers of two: each length is compiled for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.collectives.objects import packed_object, unpacked_object
from nbaccel.runtime.devices.xla_graphs import cut

_FEWEST_LANES = 32


class XlaCommunicator(Communicator):
    """Ranks are cores, each driven by a process or thread of its own."""

    scatters_on_host = True

    @property
    def backend(self) -> str:
        return "xla"

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device

    def barrier(self) -> None:
        # Fetching the answer waits for it.
        self._gather_host(torch.zeros(1, dtype=torch.int64))

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        source = _dense(tensor)
        if not source.numel():
            return source.new_empty((self.world_size, *source.shape))
        if source.device.type != "xla":
            return self._gather_host(source)
        if source.is_complex():
            return torch.view_as_complex(self.all_gather(torch.view_as_real(source)))
        return self._gathered(source.unsqueeze(0))

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch_xla.core.xla_model as xm

        source = _dense(tensor)
        # A sum of flags is a count.
        narrow = torch.int64 if source.dtype is torch.bool else source.dtype
        if not source.numel():
            return source.to(narrow)
        if source.device.type != "xla":
            wide = narrow if source.is_floating_point() or source.is_complex() else torch.int64
            return self._gather_host(source).to(wide).sum(0).to(narrow)
        if source.is_complex():
            return torch.view_as_complex(self.all_reduce_sum(torch.view_as_real(source)))
        value = source.to(narrow, copy=True)
        cut()
        total: torch.Tensor = xm.all_reduce(xm.REDUCE_SUM, value)
        cut()
        return total

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        if not tensor.numel():
            return
        with torch.no_grad():
            if tensor.device.type != "xla":
                tensor.copy_(_from_lanes(self._send_lanes(_to_lanes(tensor), source), tensor))
            else:
                self.broadcast_all([tensor], source)

    def broadcast_all(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        """As :meth:`broadcast`, of many tensors of this device in one graph."""
        import torch_xla.core.xla_model as xm

        with torch.no_grad():
            # The sum of one value and zeros. The zeros are data by the time of the collective.
            whole = [t.detach().to(torch.int32) if t.dtype is torch.bool else t.detach() for t in tensors]
            sent = [t.clone() if self.rank == source else torch.zeros_like(t) for t in whole]
            cut()
            arrived = xm.all_reduce(xm.REDUCE_SUM, sent)
            cut()
            for tensor, value in zip(tensors, arrived, strict=True):
                tensor.copy_(value.to(tensor.dtype))
            cut()

    def scatter(self, buffer: torch.Tensor, pieces: list[torch.Tensor] | None, source: int) -> None:
        """As in the base class; ``buffer`` and ``pieces`` lie on the host."""
        import torch_xla.core.xla_model as xm

        lanes = _lanes_for(buffer.numel() * buffer.element_size())
        if pieces is not None:
            own = torch.stack([_to_lanes(piece, lanes) for piece in pieces])
        else:
            own = torch.zeros(self.world_size, lanes, dtype=torch.int32)
        sent = own.to(self.device)
        cut()
        arrived = xm.reduce_scatter(
            xm.REDUCE_SUM,
            sent,
            scale=1.0,
            scatter_dim=0,
            shard_count=self.world_size,
            pin_layout=False,
        )
        cut()
        buffer.copy_(_from_lanes(arrived.cpu().view(-1), buffer))

    def all_gather_object(self, value: Any) -> list[Any]:
        packed = packed_object(value)
        sizes = self._gather_host(torch.tensor([packed.numel()], dtype=torch.int64)).view(-1).tolist()
        sent = _to_lanes(packed, _lanes_for(max(sizes))).to(self.device)
        rows = self._gathered(sent.unsqueeze(0)).cpu()
        return [unpacked_object(row.view(torch.uint8)[:size]) for row, size in zip(rows, sizes, strict=True)]

    def broadcast_object(self, value: Any, source: int) -> Any:
        packed = packed_object(value if self.rank == source else None)
        size = torch.tensor([packed.numel()], dtype=torch.int64)
        self.broadcast(size, source)
        lanes = self._send_lanes(_to_lanes(packed, _lanes_for(int(size))), source)
        return unpacked_object(lanes.view(torch.uint8)[: int(size)])

    def leading(self, blocks: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        # On the host: cutting pieces out on the device would compile a graph for each length.
        fetched = blocks.cpu()
        kept = torch.cat([block[:count] for block, count in zip(fetched, counts, strict=True)])
        return kept.to(blocks.device)

    def _gather_host(self, tensor: torch.Tensor) -> torch.Tensor:
        rows = self._gathered(_to_lanes(tensor).to(self.device).unsqueeze(0)).cpu()
        return torch.stack([_from_lanes(row, tensor) for row in rows])

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rows of all ranks, of tensors ``[1, ...]`` on the device."""
        import torch_xla.core.xla_model as xm

        cut()
        # With pinned layout the rank would be in the graph.
        rows: torch.Tensor = xm.all_gather(tensor, pin_layout=False)
        cut()
        return rows

    def _send_lanes(self, lanes: torch.Tensor, source: int) -> torch.Tensor:
        import torch_xla.core.xla_model as xm

        sent = (lanes if self.rank == source else torch.zeros_like(lanes)).to(self.device)
        cut()
        arrived: torch.Tensor = xm.all_reduce(xm.REDUCE_SUM, sent)
        cut()
        return arrived.cpu()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Without autograd, strides and lazy conjugation."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _lanes_for(size: int) -> int:
    """Whole numbers of 32 bits that ``size`` bytes travel as."""
    lanes = _FEWEST_LANES
    while lanes * 4 < size:
        lanes *= 2
    return lanes


def _to_lanes(tensor: torch.Tensor, lanes: int | None = None) -> torch.Tensor:
    raw = _dense(tensor).view(-1).view(torch.uint8)
    padded = torch.zeros((lanes or _lanes_for(raw.numel())) * 4, dtype=torch.uint8)
    padded[: raw.numel()] = raw
    return padded.view(torch.int32)


def _from_lanes(lanes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    size = like.numel() * like.element_size()
    # A copy, so that the bytes begin at an address that any type may have.
    return lanes.contiguous().view(torch.uint8)[:size].clone().view(like.dtype).view(like.shape)
