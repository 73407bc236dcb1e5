"""A full replica on each XLA core, gradients averaged by the graph of the optimizer's step.

The model isn't wrapped. Until a step needs them, gradients are the core's own; then one all-reduce of all
of them becomes part of the step's graph. A clip before the step asks for it earlier, so what has been
averaged is remembered by the gradient's identity and version.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from nbaccel.runtime.collectives.xla_communicator import XlaCommunicator
from nbaccel.runtime.devices import xla_graphs
from nbaccel.runtime.process_group import add_group_user
from nbaccel.runtime.strategies.base import Strategy


class _Replica:
    """A model of which each rank has a copy: a :class:`~nbaccel.runtime.process_group.GroupUser`."""

    def __init__(self, model: nn.Module, communicator: XlaCommunicator) -> None:
        self.model = weakref.ref(model)
        self._communicator = communicator

    def release_group(self) -> None:
        """Nothing: there is no group that could end."""

    def group_key(self) -> str:
        """Shapes of the parameters."""
        model = self.model()
        shapes = [] if model is None else [tuple(parameter.shape) for parameter in model.parameters()]
        return f"model {shapes}"

    def rebind_group(self) -> None:
        """Give all ranks rank 0's parameters and buffers. Collective."""
        model = self.model()
        if model is None:
            return
        state = [
            tensor
            for tensor in {id(t): t for t in [*model.parameters(), *model.buffers()]}.values()
            if tensor.device.type == self._communicator.device.type and tensor.numel()
        ]
        if state:
            self._communicator.broadcast_all(state, 0)


class XlaStrategy(Strategy):
    """For any number of cores; with one, it only ends each step's graph."""

    name: ClassVar[str] = "xla"

    def __init__(self, communicator: XlaCommunicator) -> None:
        self._communicator = communicator
        # A list: all ranks must go through them in the same order.
        self._models: list[_Replica] = []
        self._complete: Any = WeakTensorKeyDictionary()
        """By gradient: its version when it was last the same on all ranks."""
        self._local = 0
        self._patterns: set[tuple[bool, ...]] = set()
        self._first = self._rank_zero_flag()

    def _rank_zero_flag(self) -> torch.Tensor | None:
        if self._communicator.world_size == 1:
            return None
        # As data: were it a constant, rank 0 would have a graph of its own.
        return torch.tensor([self._communicator.rank == 0]).to(self._communicator.device)

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Give all ranks rank 0's parameters and buffers. Collective."""
        self._models = [one for one in self._models if one.model() is not None]
        replica = _Replica(model, self._communicator)
        self._models.append(replica)
        if self._communicator.world_size > 1:
            replica.rebind_group()
            add_group_user(replica)
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    def is_wrapped(self, model: nn.Module) -> bool:
        return any(one.model() is model for one in self._models)

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        self._local += 1
        try:
            yield
        finally:
            self._local -= 1

    def join(self, models: list[Any]) -> AbstractContextManager[Any]:
        warnings.warn(
            "join_uneven_inputs does nothing on XLA devices, where all ranks must take the same steps; leave "
            "even_batches on, which gives every rank equally many batches",
            stacklevel=4,
        )
        return nullcontext()

    def sync_next_backward(self, model: nn.Module) -> None:
        """Nothing: gradients are averaged at the step."""

    def complete_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        world = self._communicator.world_size
        if world == 1 or self._local:
            return
        import torch_xla.core.xla_model as xm

        trained = list(parameters)
        self._check_pattern(tuple(p.grad is not None for p in trained))
        waiting = [g for p in trained if (g := p.grad) is not None and self._complete.get(g) != g._version]
        if not waiting:
            return
        with torch.no_grad():
            xm.all_reduce(xm.REDUCE_SUM, waiting, scale=1.0 / world)
        self._note_complete(trained)

    def gradients_edited(self, parameters: Iterable[torch.Tensor]) -> None:
        if self._communicator.world_size == 1 or self._local:
            return
        self._note_complete(parameters)
        # A rank that looks at the norm alone would run a graph with the all-reduce that no other runs.
        xla_graphs.cut()

    def _note_complete(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                self._complete[parameter.grad] = parameter.grad._version

    def _check_pattern(self, pattern: tuple[bool, ...]) -> None:
        """Where one rank has a gradient that another lacks, their graphs differ and both would wait."""
        if pattern in self._patterns:
            return
        everyone = self._communicator.all_gather_object(pattern)
        for rank, other in enumerate(everyone):
            if other != everyone[0]:
                pairs = enumerate(zip(everyone[0], other, strict=False))
                place = next((i for i, (a, b) in pairs if a != b), len(pattern))
                raise RuntimeError(
                    f"ranks 0 and {rank} have gradients for different parameters (first at number {place} "
                    f"of {len(pattern)}), but on XLA devices all ranks must run the same graph: let each "
                    "forward pass use the same parameters on every rank"
                )
        self._patterns.add(pattern)

    def step_taken(self) -> None:
        self._share_buffers()
        xla_graphs.step_taken()

    def _share_buffers(self) -> None:
        """Rank 0's running statistics for all, as with DistributedDataParallel."""
        if self._first is None or self._local:
            return
        import torch_xla.core.xla_model as xm

        shared = [
            buffer
            for one in self._models
            if (model := one.model()) is not None and model.training
            for buffer in model.buffers()
            if buffer.device.type == self._communicator.device.type
            and buffer.numel()
            and buffer.dtype is not torch.bool
        ]
        if not shared:
            return
        with torch.no_grad():
            # Chosen, not multiplied: a NaN of another rank must not spread.
            sent = [
                torch.where(self._first, buffer, torch.zeros_like(buffer)).view(buffer.shape)
                for buffer in shared
            ]
            xm.all_reduce(xm.REDUCE_SUM, sent)
            for buffer, value in zip(shared, sent, strict=True):
                buffer.copy_(value)
