"""The learning-rate scheduler that a training loop gets back from ``prepare``.

Rule: one step of the schedule for each real step of the optimizer, on any number of processes. The
incumbent moves the schedule on by the number of processes each time; ``steps_per_update`` offers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from nbaccel.runtime import recovery
from nbaccel.runtime.accumulation import GradientState
from nbaccel.runtime.optimizer import AcceleratedOptimizer


class AcceleratedScheduler:
    """Wraps a torch scheduler and steps it only when its optimizer has stepped.

    Args:
        scheduler: the scheduler to wrap.
        optimizers: those whose skipped steps hold it back.
        step_with_optimizer: False steps it whenever ``step`` is called.
        split_batches: unused; whether batches are split between the processes, which the incumbent
            needs for its rule.
        steps_per_update: how far one optimizer step moves the schedule; 1, or the number of processes.
        gradient_state: says where a window of accumulation ends.
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: Optimizer | Sequence[Optimizer],
        step_with_optimizer: bool = True,
        split_batches: bool = False,
        *,
        steps_per_update: int = 1,
        gradient_state: GradientState | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.optimizers = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
        self.step_with_optimizer = step_with_optimizer
        self.split_batches = split_batches
        self.steps_per_update = steps_per_update
        self.gradient_state = gradient_state or GradientState()
        recovery.track(self)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move on, unless the optimizer didn't: inside a window of accumulation, or after an overflow."""
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not self.gradient_state.sync_gradients:
            return
        for optimizer in self.optimizers:
            if isinstance(optimizer, AcceleratedOptimizer) and optimizer.step_was_skipped:
                return
        for _ in range(self.steps_per_update):
            if self._is_over():
                return
            self.scheduler.step(*args, **kwargs)

    def _is_over(self) -> bool:
        # OneCycleLR raises past its end; several steps an update could overshoot on the last one.
        total = getattr(self.scheduler, "total_steps", None)
        return self.steps_per_update > 1 and total is not None and self.scheduler.last_epoch + 1 >= total

    def get_last_lr(self) -> list[float]:
        """The last learning rate of each parameter group."""
        rates: list[float] = self.scheduler.get_last_lr()
        return rates

    def get_lr(self) -> list[float]:
        """As torch's ``get_lr``."""
        rates: list[float] = self.scheduler.get_lr()
        return rates

    def print_lr(self, *args: Any, **kwargs: Any) -> None:
        """As torch's ``print_lr``."""
        self.scheduler.print_lr(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped scheduler's."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the wrapped scheduler."""
        self.scheduler.load_state_dict(state_dict)

    def forget_window(self) -> None:
        """Nothing: the optimizer's window is the schedule's."""

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)
