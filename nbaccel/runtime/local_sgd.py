"""Local SGD: ranks train on their own for some steps, then average their weights."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn


class LocalSGD:
    """The ``with`` block around a training loop whose gradients stay on the rank.

    Args:
        accelerator: prepared ``model``.
        model: a prepared model.
        local_sgd_steps: optimizer steps between two averages.
        enabled: False makes it do nothing.
    """

    def __init__(
        self, accelerator: Any, model: nn.Module, local_sgd_steps: int, enabled: bool = True
    ) -> None:
        if local_sgd_steps < 1:
            raise ValueError(f"local_sgd_steps={local_sgd_steps} must be at least 1")
        self.enabled = enabled and accelerator.use_distributed
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = local_sgd_steps
        self.num_steps = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self.enabled:
            self._stack.enter_context(self.accelerator.no_sync(self.model))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        # After an error the others aren't here to average with.
        if self.enabled and error is None:
            self._average()

    def step(self) -> None:
        """Call it after each step of the optimizer; averages when it is time. Collective then."""
        if not self.enabled or not self.accelerator.sync_gradients:
            return
        self.num_steps += 1
        if self.num_steps % self.local_sgd_steps == 0:
            self._average()

    def _average(self) -> None:
        self.accelerator.wait_for_everyone()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(self.accelerator.reduce(parameter, "mean"))
