"""Samplers of our own: a shuffled order that depends on seed and epoch only, and one that starts late."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler


class SeedableRandomSampler(RandomSampler):
    """A random order that is the same on every rank and in every run with the same seed and epoch.

    Args:
        data_source: what to sample from; only its length is used.
        replacement: draw with replacement.
        num_samples: how many to draw; all by default.
        generator: supplies the seed when ``data_seed`` is None.
        data_seed: the seed; by default the generator's, or else torch's initial seed.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        data_seed: int | None = None,
    ) -> None:
        super().__init__(data_source, replacement, num_samples, torch.Generator())
        source = generator.initial_seed() if generator is not None else torch.initial_seed()
        self.initial_seed = source if data_seed is None else data_seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The next pass gives the order of ``epoch``."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed((self.initial_seed + self.epoch) % (1 << 63))
        yield from super().__iter__()
        # A loop that never calls set_epoch still gets a new order each time.
        self.epoch += 1


class SkipBatchSampler(BatchSampler):
    """All batches of a batch sampler but the first ``skip_batches``; none of their samples is read."""

    def __init__(self, batch_sampler: Any, skip_batches: int = 0) -> None:
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches

    def __getattr__(self, name: str) -> Any:
        if name == "batch_sampler":
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)

    def __iter__(self) -> Iterator[list[int]]:
        # Not a generator: the pass of the batch sampler begins when this one does.
        return itertools.islice(iter(self.batch_sampler), self.skip_batches, None)

    @property
    def total_length(self) -> int:
        """Batches of the whole pass."""
        return len(self.batch_sampler)

    def __len__(self) -> int:
        return max(0, len(self.batch_sampler) - self.skip_batches)


def find_sampler(source: Any) -> Any:
    """The innermost sampler behind a loader, a batch sampler or a shard of one."""
    seen = source
    while True:
        # Not by truth, which would ask a sampler for its length.
        inner = getattr(seen, "batch_sampler", None)
        if inner is None:
            inner = getattr(seen, "sampler", None)
        if inner is None or inner is seen:
            return seen
        seen = inner
