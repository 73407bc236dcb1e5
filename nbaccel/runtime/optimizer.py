"""The optimizer that a training loop gets back from ``prepare``.

Its ``step`` and ``zero_grad`` act only where a window of accumulation ends, so that a loop can call
them after every batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from nbaccel.runtime import recovery
from nbaccel.runtime.accumulation import GradientState
from nbaccel.runtime.loss_scaler import LossScaler
from nbaccel.runtime.steps import clock
from nbaccel.runtime.strategies import SingleStrategy, Strategy


class AcceleratedOptimizer(Optimizer):
    """Wraps a torch optimizer; everything but ``step`` and ``zero_grad`` is the wrapped one's.

    Args:
        optimizer: the optimizer to wrap.
        device_placement: whether state that it has already is to lie where its parameters lie.
        scaler: scales losses (fp16); None without.
        gradient_state: says where a window of accumulation ends.
        strategy: keeps replicas in step; none by default.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        device_placement: bool = True,
        scaler: LossScaler | None = None,
        gradient_state: GradientState | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        # Not Optimizer.__init__: state and parameter groups are the wrapped optimizer's.
        self.optimizer = optimizer
        self.scaler = scaler
        self.gradient_state = gradient_state or GradientState()
        self.strategy = strategy or SingleStrategy()
        self.device_placement = device_placement
        self._skipped = False
        self.steps_taken = 0
        """Real steps so far."""
        recovery.track(self)
        if device_placement and optimizer.state:
            # Loading moves the state to where the parameters are now.
            optimizer.load_state_dict(optimizer.state_dict())

    @property
    def state(self) -> Any:
        """The wrapped optimizer's state, by parameter."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's parameter groups."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = value

    @property
    def defaults(self) -> dict[str, Any]:
        """The wrapped optimizer's default options."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self.optimizer.defaults = value

    def __getattr__(self, name: str) -> Any:
        # Only what isn't found otherwise. Guards against recursion while being unpickled.
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"AcceleratedOptimizer({self.optimizer!r})"

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def accelerator_state(self) -> Any:
        """Rank, world, device and precision of this process."""
        from nbaccel.state import AcceleratorState

        return AcceleratorState()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the wrapped optimizer; tensors go to where their parameters lie."""
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, except inside a window of accumulation."""
        if self.gradient_state.sync_gradients:
            self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step, except inside a window of accumulation or when an fp16 gradient overflowed.

        Returns what the wrapped optimizer returns.
        """
        if not self.gradient_state.sync_gradients:
            return None
        if self.scaler is not None:
            self._skipped = not self.scaler.step(self.optimizer, closure)
            self.steps_taken += not self._skipped
            clock().advance()
            return None
        self.steps_taken += 1
        if closure is None:
            if self.steps_taken == 1:
                self._tell_of_lacking_gradients()
            self.strategy.complete_gradients(parameters_of(self.optimizer))
            value = self.optimizer.step()
        else:
            value = self.optimizer.step(self._completing(closure))
        self.strategy.step_taken()
        clock().advance()
        return value

    def _tell_of_lacking_gradients(self) -> None:
        parameters = list(parameters_of(self.optimizer))
        if parameters and all(parameter.grad is None for parameter in parameters):
            warnings.warn(
                f"optimizer.step() does nothing: none of its {len(parameters)} parameters has a gradient; "
                "they aren't those that backward() reached; make the optimizer anew from model.parameters() "
                "of the prepared model, and prepare it",
                stacklevel=3,
            )

    def _completing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """``closure``, whose backward is followed by what other ranks have to add."""

        def complete() -> Any:
            value = closure()
            self.strategy.complete_gradients(parameters_of(self.optimizer))
            return value

        return complete

    def forget_window(self) -> None:
        """Drop gradients, and the place in a window of accumulation that was broken off."""
        self.optimizer.zero_grad()
        self.gradient_state.reset_window()

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last step was left out because a gradient overflowed."""
        return self._skipped

    def train(self) -> None:
        """Training mode, for optimizers that have modes (schedule-free ones)."""
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()

    def eval(self) -> None:
        """Evaluation mode, for optimizers that have modes."""
        if hasattr(self.optimizer, "eval"):
            self.optimizer.eval()


def inner_optimizer(optimizer: Optimizer) -> Optimizer:
    """The torch optimizer behind ``optimizer``."""
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer


def rebind(optimizer: Optimizer, moved: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Have ``optimizer`` work on the parameters that took the place of its own.

    Args:
        optimizer: a plain one, with or without state.
        moved: the new parameter for an old one; None where it is still in use.
    """
    replaced: dict[torch.Tensor, torch.Tensor] = {}
    for group in optimizer.param_groups:
        for i, parameter in enumerate(group["params"]):
            new = moved(parameter)
            if new is not None:
                group["params"][i] = replaced[parameter] = new
    for old, new in replaced.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


def parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """All parameters of ``optimizer``, in order; walked through only by those who need them at each step."""
    return (p for group in optimizer.param_groups for p in group["params"])
