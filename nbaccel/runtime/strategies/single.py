"""One process: the model is trained as it is."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from nbaccel.runtime.strategies.base import Strategy


class SingleStrategy(Strategy):
    """Nothing to keep in step."""

    name: ClassVar[str] = "single"

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    def is_wrapped(self, model: nn.Module) -> bool:
        return False

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self, models: list[Any]) -> AbstractContextManager[Any]:
        return nullcontext()

    def sync_next_backward(self, model: nn.Module) -> None:
        """Nothing to synchronise."""
