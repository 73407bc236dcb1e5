"""The few primitives that all collectives are built from, and the trivial ones of a lone process.

A kind of hardware with its own way to communicate brings its own :class:`Communicator`. Everything
above this line (nested containers, checks, trimming) is shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch


class Communicator(ABC):
    """How this rank talks to the others. Every method is collective: all ranks call it, in one order."""

    rank: int
    world_size: int

    scatters_on_host = False
    """Whether :meth:`scatter` takes tensors of the host only."""

    @property
    def backend(self) -> str | None:
        """What carries the data; None where there is nobody to talk to."""
        return None

    def announce(self, operation: str) -> None:
        """Called before each operation; a debug mode checks here that all ranks came."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    def bounded_barrier(self, operation: str, timeout: timedelta) -> None:
        """As :meth:`barrier`, but for ``timeout`` at most, where there is a way to know who is missing.

        Args:
            operation: what the caller called, for the message.
            timeout: how long to wait for the others.

        Raises:
            TimeoutError: names the ranks that didn't come.
        """
        self.barrier()

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, stacked: shape ``[world_size, *tensor.shape]``, same dtype and device.

        Shapes and dtypes must agree; the caller has checked that.
        """

    @abstractmethod
    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The element-wise sum over all ranks; ``tensor`` itself is left as it is."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Overwrite ``tensor`` with that of rank ``source``."""

    @abstractmethod
    def scatter(self, buffer: torch.Tensor, pieces: list[torch.Tensor] | None, source: int) -> None:
        """Fill ``buffer`` with this rank's entry of ``pieces``, which only rank ``source`` passes."""

    def leading(self, blocks: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """The first ``counts[rank]`` entries of each rank's block, joined. Not collective.

        Shapes: ``blocks`` is ``[world_size, n, ...]``, the result ``[sum(counts), ...]``.
        """
        return torch.cat([block[:count] for block, count in zip(blocks, counts, strict=True)])

    @abstractmethod
    def all_gather_object(self, value: Any) -> list[Any]:
        """The picklable values of all ranks, by rank."""

    @abstractmethod
    def broadcast_object(self, value: Any, source: int) -> Any:
        """The picklable value of rank ``source``; ``value`` is ignored on the others."""


class LocalCommunicator(Communicator):
    """A world of one: nothing to say to anyone, and no process group needed."""

    rank = 0
    world_size = 1

    def barrier(self) -> None:
        """Return at once."""

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().unsqueeze(0)

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone()

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        if source != 0:
            raise ValueError(f"there is no rank {source} in a world of 1 process")

    def scatter(self, buffer: torch.Tensor, pieces: list[torch.Tensor] | None, source: int) -> None:
        if pieces is not None:
            buffer.copy_(pieces[source])

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_object(self, value: Any, source: int) -> Any:
        if source != 0:
            raise ValueError(f"there is no rank {source} in a world of 1 process")
        return value
