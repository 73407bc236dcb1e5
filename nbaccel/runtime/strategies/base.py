"""How replicas of a model are kept in step. One subclass a way of doing it, one file a subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import nn


class Strategy(ABC):
    """Wraps models for training on many ranks, and takes the wrapper off again."""

    name: ClassVar[str]

    @abstractmethod
    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model to train with. ``model`` lies on ``device`` already."""

    @abstractmethod
    def unwrap(self, model: nn.Module) -> nn.Module:
        """Undo :meth:`wrap`; a model that isn't wrapped comes back as it is."""

    @abstractmethod
    def is_wrapped(self, model: nn.Module) -> bool:
        """Whether ``model`` is the result of :meth:`wrap`."""

    @abstractmethod
    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within it, backward leaves the gradients of ``model`` local to the rank."""

    @abstractmethod
    def join(self, models: list[Any]) -> AbstractContextManager[Any]:
        """Within it, ranks may take different numbers of steps."""

    @abstractmethod
    def sync_next_backward(self, model: nn.Module) -> None:
        """Have the next backward synchronise, though its forward ran under :meth:`no_sync`."""

    def complete_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Have the gradients be those of all ranks, before they are read or stepped with. Collective.

        Nothing where backward has seen to it. Costs nothing when they are complete already.
        """

    def gradients_edited(self, parameters: Iterable[torch.Tensor]) -> None:
        """Complete gradients were changed in the same way on every rank, e.g. clipped."""

    def step_taken(self) -> None:
        """An optimizer has stepped."""
