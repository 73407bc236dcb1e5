"""The order of a sampler that draws random numbers in a way of its own, made the same on every rank.

Nothing is known of where it draws from, so rank 0 takes the whole order from it at the start of a pass
and tells the others. A sampler without a length may have no end and is left alone: it must give the
same order on all ranks by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.data.samplers import SeedableRandomSampler

# Their order depends on nothing, or is agreed on otherwise.
_SETTLED = (SequentialSampler, RandomSampler, SeedableRandomSampler, list, tuple, range)


class AgreedOrder:
    """A sampler or batch sampler whose order is rank 0's. Attributes are those of the one inside."""

    def __init__(self, inner: Any, communicator: Communicator) -> None:
        self.inner = inner
        self.communicator = communicator

    def __getattr__(self, name: str) -> Any:
        if name in {"inner", "communicator"}:
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        order = list(self.inner) if self.communicator.rank == 0 else None
        return iter(self.communicator.broadcast_object(order, 0))


def agreed(batch_sampler: Any, communicator: Communicator | None) -> Any:
    """``batch_sampler``, with the order agreed on where that isn't certain already."""
    if communicator is None or communicator.world_size == 1:
        return batch_sampler
    if type(batch_sampler) is BatchSampler:
        if _is_settled(batch_sampler.sampler):
            return batch_sampler
        order = AgreedOrder(batch_sampler.sampler, communicator)
        return BatchSampler(order, batch_sampler.batch_size, batch_sampler.drop_last)
    return batch_sampler if _is_settled(batch_sampler) else AgreedOrder(batch_sampler, communicator)


def _is_settled(sampler: Any) -> bool:
    # Those with a generator get one with the same state on all ranks.
    return isinstance(sampler, _SETTLED) or hasattr(sampler, "generator") or not hasattr(sampler, "__len__")
