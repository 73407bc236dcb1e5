"""Gradient accumulation: where a window of micro-batches ends, and what each loss is divided by.

A window ends after ``num_steps`` micro-batches, or with the last batch of the loader. The gradient
of a window is the mean over the micro-batches that are really in it::

    batches    0 1 2 3 | 4 5          num_steps = 4, six batches
    divided by 4 4 4 4 | 2 2          not 4 4 | the incumbent would halve the last update

How many there will be is known beforehand when the loader has a length. When it turns out otherwise
(an iterable that ends early, a loop that is broken off and taken up again), the gradients gathered
so far are rescaled before the last backward of the window.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from nbaccel.left_out import explain_member
from nbaccel.runtime.data import loops
from nbaccel.runtime.plugins import GradientAccumulationPlugin
from nbaccel.runtime.rank_local import RankLocal
from nbaccel.runtime.strategies import Strategy


class _Latest:
    """The state of the Accelerator that was made last, or that began a micro-batch last."""

    state: GradientState | None = None


_latest = RankLocal(_Latest)


class GradientState:
    """Where training stands in its window of accumulation. Each Accelerator has one of its own.

    ``GradientState()`` is that of the Accelerator that was made or used last, for code that has no
    Accelerator at hand; where there is none, a new one. With a plugin it is always a new one.
    """

    def __new__(cls, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> Self:
        latest = _latest.get().state if gradient_accumulation_plugin is None else None
        return super().__new__(cls) if latest is None else latest  # type: ignore[return-value]

    def __init__(self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> None:
        known = _latest.get()
        if self is known.state:
            return
        self.plugin = gradient_accumulation_plugin or GradientAccumulationPlugin()
        self.sync_gradients = True
        """Whether the running micro-batch ends a window: gradients are averaged and optimizers step."""
        self.micro_steps = 0
        """Micro-batches in the running window so far."""
        self.divisor = self.num_steps
        """What losses are divided by."""
        self.owned = False
        """Whether an Accelerator has it."""
        if known.state is None:
            known.state = self

    @classmethod
    def of_accelerator(cls, plugin: GradientAccumulationPlugin) -> GradientState:
        """The state for a new Accelerator: a new one, or the one that was waiting for its Accelerator."""
        waiting = _latest.get().state
        may_be = (GradientAccumulationPlugin(), plugin)
        if waiting is not None and not waiting.owned and waiting.plugin in may_be:
            state = waiting
            state.plugin = plugin
            state.reset_window()
        else:
            state = cls(plugin)
        state.owned = True
        state.becomes_latest()
        return state

    def __reduce__(self) -> Any:
        # A window doesn't travel, only its length. What uses this state in a notebook uses that of the
        # Accelerator that is made anew in the worker, whichever of the two arrives first.
        return _arrived, (self.plugin,)

    def __getattr__(self, name: str) -> Any:
        raise explain_member(self, name)

    def __repr__(self) -> str:
        return (
            f"GradientState(sync_gradients={self.sync_gradients}, num_steps={self.num_steps}, "
            f"end_of_dataloader={self.end_of_dataloader}, remainder={self.remainder})"
        )

    def becomes_latest(self) -> None:
        """From now on it is what ``GradientState()`` gives."""
        _latest.get().state = self

    @staticmethod
    def forget_latest() -> None:
        """``GradientState()`` gives a new one next."""
        _latest.set(_Latest())

    @staticmethod
    def _reset_state() -> None:
        GradientState.forget_latest()

    @property
    def initialized(self) -> bool:
        """True: a state that exists is initialised."""
        return True

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        """The options of the plugin that differ from their default."""
        return self.plugin.to_kwargs()

    @property
    def num_steps(self) -> int:
        """Micro-batches in a full window."""
        return self.plugin.num_steps or 1

    @num_steps.setter
    def num_steps(self, value: int) -> None:
        if value < 1:
            raise ValueError(f"gradient_accumulation_steps={value} must be at least 1")
        self.plugin.num_steps = value
        if self.sync_gradients:
            self.divisor = value

    @property
    def adjust_scheduler(self) -> bool:
        """Kept for compatibility; schedules follow real optimizer steps."""
        return self.plugin.adjust_scheduler

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether a window ends with the last batch of the loader."""
        return self.plugin.sync_with_dataloader

    @property
    def sync_each_batch(self) -> bool:
        """Whether gradients are averaged after each micro-batch, which needs less memory under sharding."""
        return self.plugin.sync_each_batch

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being iterated."""
        return loops.current() is not None

    @property
    def active_dataloader(self) -> Any:
        """The prepared loader that is being iterated, the innermost; None outside of any."""
        loop = loops.current()
        return None if loop is None else loop.loader()

    @property
    def dataloader_references(self) -> list[Any]:
        """All prepared loaders that are being iterated, outermost first, after a leading None."""
        return [None, *(loop.loader() for loop in loops.running())]

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the running batch is the last of its loader."""
        loop = loops.current()
        return loop is not None and loop.at_end

    @property
    def remainder(self) -> int:
        """Real samples, over all ranks, in the running batch when padding was added to it; else -1."""
        loop = loops.current()
        return -1 if loop is None or loop.counts is None else sum(loop.counts)

    def reset_window(self) -> None:
        """Forget a window that was broken off."""
        self.sync_gradients = True
        self.micro_steps = 0
        self.divisor = self.num_steps

    def begin_micro_step(self) -> int | None:
        """Move on to the next micro-batch.

        Returns:
            The number that the losses of this window were divided by so far, when that was wrong; the
            caller rescales their gradients to :attr:`divisor`.
        """
        loop = loops.current() if self.sync_with_dataloader else None
        if self.sync_gradients or self.micro_steps == 0:
            self.micro_steps = 0
            left = None if loop is None else loop.remaining
            self.divisor = self.num_steps if left is None else min(self.num_steps, left)
        self.micro_steps += 1
        self.sync_gradients = self.micro_steps >= self.num_steps or (loop is not None and loop.at_end)
        if self.sync_gradients and self.divisor != self.micro_steps:
            used, self.divisor = self.divisor, self.micro_steps
            return used if self.micro_steps > 1 else None
        return None


def _arrived(plugin: GradientAccumulationPlugin) -> GradientState:
    latest = _latest.get().state
    return latest if latest is not None and latest.plugin == plugin else GradientState(plugin)


class MicroStep:
    """The ``with`` block around one micro-batch.

    Args:
        state: the window it belongs to.
        strategy: leaves gradients local inside a window.
        models: those that are trained in the block.
        parameters: everything whose gradients are gathered in the window.
    """

    def __init__(
        self,
        state: GradientState,
        strategy: Strategy,
        models: tuple[nn.Module, ...],
        parameters: Callable[[], Iterable[torch.Tensor]],
        watch: GradientWatch,
    ) -> None:
        self.state = state
        self.strategy = strategy
        self.models = models
        self.parameters = parameters
        self.watch = watch
        self.stack = ExitStack()

    def __enter__(self) -> None:
        state = self.state
        state.becomes_latest()
        used = state.begin_micro_step()
        if used is not None:
            factor = used / state.divisor
            for parameter in {id(p): p for p in self.parameters()}.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
            self.watch.rescaled()
        self.watch.begin(self.models, first=state.micro_steps == 1)
        if not (state.sync_gradients or state.sync_each_batch):
            for model in self.models:
                self.stack.enter_context(self.strategy.no_sync(model))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()
        if error is None:
            self.watch.end(window_goes_on=not self.state.sync_gradients)


class GradientWatch:
    """Notices, once each, the two mistakes that silently undo accumulation.

    It looks at one parameter of the models in the block: at its version, which an optimizer step
    changes, and at that of its gradient, which clearing changes.
    """

    def __init__(self) -> None:
        self._parameter: torch.Tensor | None = None
        self._version = 0
        self._gradient: tuple[int, int] | None = None
        self._rescaled = False
        self._warned_step = False
        self._warned_clear = False

    def begin(self, models: tuple[nn.Module, ...], *, first: bool) -> None:
        """A micro-batch begins; ``first`` of its window or not."""
        if first:
            self._parameter = next((p for m in models for p in m.parameters() if p.requires_grad), None)
            self._gradient = None
        elif self._parameter is not None and self._gradient is not None and self._rescaled:
            self._gradient = _fingerprint(self._parameter)
        self._rescaled = False
        if self._parameter is not None:
            self._version = self._parameter._version

    def rescaled(self) -> None:
        """The gradients were changed on purpose, just before :meth:`begin`."""
        self._rescaled = True

    def forget(self) -> None:
        """Let go of the parameter that is looked at."""
        self._parameter = self._gradient = None

    def before_backward(self) -> None:
        """A backward is about to add to the gradients."""
        expected, self._gradient = self._gradient, None
        if expected is None or self._warned_clear or self._parameter is None:
            return
        if _fingerprint(self._parameter) != expected:
            self._warned_clear = True
            warnings.warn(
                "gradients were cleared or changed inside a window of gradient accumulation, so what the "
                "earlier micro-batches contributed is lost. Call optimizer.zero_grad() on the prepared "
                "optimizer, which waits for the end of the window, instead of model.zero_grad()",
                stacklevel=4,
            )

    def after_backward(self) -> None:
        """A backward has added to the gradients."""
        if self._parameter is not None:
            self._gradient = _fingerprint(self._parameter)

    def end(self, *, window_goes_on: bool) -> None:
        """The block is over."""
        if not window_goes_on or self._parameter is None or self._warned_step:
            return
        if self._parameter._version != self._version:
            self._warned_step = True
            warnings.warn(
                "parameters changed inside a window of gradient accumulation: an optimizer stepped that "
                "doesn't know of it. Pass it through accelerator.prepare(optimizer)",
                stacklevel=3,
            )


def _fingerprint(parameter: torch.Tensor) -> tuple[int, int] | None:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)
