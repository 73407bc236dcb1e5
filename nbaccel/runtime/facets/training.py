"""The training step: backward, accumulation, clipping, autocast."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from nbaccel.runtime.accumulation import MicroStep
from nbaccel.runtime.collectives import operations
from nbaccel.runtime.facets.core import AcceleratorParts
from nbaccel.runtime.optimizer import inner_optimizer, parameters_of
from nbaccel.runtime.plugins import AutocastKwargs, ProfileKwargs
from nbaccel.runtime.strategies import DdpStrategy

_NOTHING: AbstractContextManager[None] = nullcontext()


class TrainingFacet(AcceleratorParts):
    """What happens between a batch and the step of the optimizer."""

    @property
    def sync_gradients(self) -> bool:
        """Whether the running micro-batch ends a window, so that optimizers step."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches in a window."""
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self.gradient_state.num_steps = value

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Compute gradients, in place of ``loss.backward()``.

        The loss is divided by the number of micro-batches in the window, and scaled for fp16.

        Args:
            loss: usually without dimensions, the mean over the micro-batch.
            kwargs: for :meth:`torch.Tensor.backward`.
        """
        if self._replicas is not None:
            self._replicas.before_backward(loss, self._models, self._optimizers)
        state = self.gradient_state
        if state.divisor != 1:
            loss = loss / state.divisor
            self._watch.before_backward()
        if self._loss_scaler is not None:
            loss = self._loss_scaler.scale(loss)
        loss.backward(**kwargs)  # type: ignore[no-untyped-call]
        if not state.sync_gradients:
            self._watch.after_backward()

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """The ``with`` block around one micro-batch: forward, backward, step and all.

        Inside a window, gradients stay on the rank, and prepared optimizers and schedulers do nothing.
        The window ends after ``gradient_accumulation_steps`` micro-batches and with the last batch of
        a prepared loader; its gradient is the mean over the micro-batches that are in it.

        Args:
            models: all that are trained in the block. One call for several models advances once.
        """
        if self.gradient_state.num_steps == 1 and self.gradient_state.sync_gradients:
            return _NOTHING
        return MicroStep(
            self.gradient_state,
            self._strategy,
            models,
            lambda: self._gathered_parameters(models),
            self._watch,
        )

    def _gathered_parameters(self, models: tuple[nn.Module, ...]) -> Iterator[torch.Tensor]:
        for model in models:
            yield from model.parameters()
        for optimizer in self._optimizers:
            yield from parameters_of(optimizer)

    def window_mean(self, total: torch.Tensor, window_count: float) -> torch.Tensor:
        """The loss to call :meth:`backward` on, for a mean over all tokens of a window on all ranks.

        Batches with many tokens then count for more than those with few, as if the window were one batch.

        Args:
            total: the loss summed over the tokens of this micro-batch.
            window_count: tokens of the whole window on all ranks: ``reduce`` the sum over its batches, which
                have to be at hand before its first backward.
        """
        state = self.gradient_state
        return total * (self._runtime.environment.world_size * state.divisor / window_count)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within it, backward leaves the gradients of ``model`` local to the rank."""
        return self._strategy.no_sync(model)

    def unscale_gradients(self, optimizer: Optimizer | list[Optimizer] | None = None) -> None:
        """Bring fp16 gradients to their true size, before anything reads them. Harmless otherwise.

        Args:
            optimizer: whose gradients; those of all prepared optimizers by default.
        """
        if self._loss_scaler is None:
            return
        chosen = self._optimizers if optimizer is None else optimizer
        for one in chosen if isinstance(chosen, (list, tuple)) else [chosen]:
            self._loss_scaler.unscale(inner_optimizer(one))

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Scale the gradients down so that their total norm is at most ``max_norm``.

        Inside a window of accumulation nothing is changed, since only the gradient of the whole window
        is to be clipped; the norm of what this rank has gathered so far is returned.

        Returns:
            The total norm before clipping, a tensor without dimensions.
        """
        tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if self.gradient_state.sync_gradients:
            self._unscale_owners(tensors)
            self._strategy.complete_gradients(tensors)
            norm = nn.utils.clip_grad_norm_(tensors, max_norm, norm_type=norm_type)
            self._strategy.gradients_edited(tensors)
            return norm
        norm = nn.utils.get_total_norm([p.grad for p in tensors if p.grad is not None], norm_type)
        scaler = self._loss_scaler
        return norm if scaler is None else norm / scaler.scaler.get_scale()

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Limit each element of the gradients to ``[-clip_value, clip_value]``; nothing inside a window."""
        tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if self.gradient_state.sync_gradients:
            self._unscale_owners(tensors)
            self._strategy.complete_gradients(tensors)
            nn.utils.clip_grad_value_(tensors, clip_value)
            self._strategy.gradients_edited(tensors)

    def _unscale_owners(self, parameters: list[torch.Tensor]) -> None:
        # Only optimizers that hold these parameters: another one's backward may not have run yet.
        if self._loss_scaler is None:
            return
        wanted = {id(p) for p in parameters}
        for optimizer in self._optimizers:
            if any(id(p) in wanted for p in parameters_of(optimizer)):
                self._loss_scaler.unscale(optimizer.optimizer)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step of any prepared optimizer was left out because a gradient overflowed."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    @property
    def mixed_precision(self) -> str:
        """The precision in effect: ``no``, ``bf16``, ``fp16`` or ``fp8``."""
        return self._precision.name

    @property
    def fp8_backend(self) -> str | None:
        """The library that fp8 goes through, ``AO`` (torchao); None with another precision."""
        return None if self._precision.fp8 is None else "AO"

    @property
    def scaler(self) -> Any:
        """The GradScaler in use; None without fp16."""
        return None if self._loss_scaler is None else self._loss_scaler.scaler

    @staticmethod
    @contextmanager
    def trigger_sync_in_backward(model: nn.Module) -> Iterator[None]:
        """Have the backward in the block average gradients, though the forward ran under :meth:`no_sync`.

        For several forward passes followed by their backward passes: only the last is put into the block.
        """
        strategy = DdpStrategy()
        strategy.sync_next_backward(model)
        yield

    @contextmanager
    def join_uneven_inputs(self, joinables: list[Any], even_batches: bool | None = None) -> Iterator[None]:
        """Train on loaders of different lengths: ranks that are done first answer for the others' averages.

        Args:
            joinables: prepared models (and other objects that torch's Join takes).
            even_batches: overrides that option of the prepared loaders within the block.
        """
        shards = [
            loader.shard
            for loader in self._dataloaders
            if even_batches is not None and hasattr(loader.shard, "even_batches")
        ]
        before = [shard.even_batches for shard in shards]
        if (
            even_batches is not None
            and len(shards) < len(self._dataloaders)
            and self._runtime.environment.world_size > 1
        ):
            warnings.warn("even_batches has no effect on loaders of iterable data sets", stacklevel=3)
        for shard in shards:
            shard.even_batches = even_batches
        try:
            with self._strategy.join(joinables):
                yield
        finally:
            for shard, even in zip(shards, before, strict=True):
                shard.even_batches = even

    @contextmanager
    def profile(self, profile_handler: ProfileKwargs | None = None) -> Iterator[Any]:
        """Profile a block.

        Args:
            profile_handler: what to record; the one of ``kwargs_handlers`` by default.
        """
        handler = profile_handler or self._handlers.get(ProfileKwargs) or ProfileKwargs()
        with handler.build() as profiler:
            yield profiler
        if handler.output_trace_dir is not None:
            folder = Path(handler.output_trace_dir)
            folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(folder / f"profile_{self._runtime.environment.rank}.json"))

    def set_trigger(self) -> None:
        """Raise a flag that :meth:`check_trigger` sees on all ranks."""
        self._trigger = True

    def check_trigger(self) -> bool:
        """Whether any rank has raised its flag since the last time; all flags are lowered. Collective."""
        raised = torch.tensor([int(self._trigger)])
        total = operations.reduce(self._runtime.communicator, raised, "sum")
        self._trigger = self._trigger and not bool(total.item())
        return bool(total.item())

    @contextmanager
    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> Iterator[None]:
        """Run a block under the precision in effect, for losses and other work outside the model.

        Args:
            autocast_handler: options for this block only.
        """
        precision = self._precision
        if autocast_handler is not None:
            precision = replace(
                precision, enabled=autocast_handler.enabled, cache_enabled=autocast_handler.cache_enabled
            )
        with precision.autocast():
            yield
