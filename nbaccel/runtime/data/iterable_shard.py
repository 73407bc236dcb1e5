"""Samples of an iterable data set, shared out among the ranks: every rank reads all, and keeps its part.

Samples are taken in groups of ``num_processes`` batches, of which each rank keeps one. The last group
is filled up from the first samples. How many samples of it are real is known only where the data set
is read, which may be a loader's worker process, so it travels with the batch (:class:`Marked`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from nbaccel.runtime.data.batch_shard import UNBOUNDED
from nbaccel.runtime.data.stateful import ResumableGroups


class IterableDatasetShard(IterableDataset[Any]):
    """This rank's part of an iterable data set.

    Args:
        dataset: yields samples, the same on all ranks.
        batch_size: of the loader that reads it.
        drop_last: leave out the last group when it isn't full.
        num_processes: number of ranks.
        process_index: this rank.
        split_batches: ``batch_size`` is that of all ranks together.
        even_batches: fill the last group up. Otherwise late ranks get fewer samples.

    Raises:
        ValueError: ``split_batches`` and a batch size that the number of ranks doesn't divide.
    """

    marks = False
    """Whether the samples of a group that was filled up come as :class:`Marked`."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        if split_batches and batch_size > 1 and batch_size % num_processes:
            raise ValueError(
                f"split_batches needs a batch size that the number of processes divides, but "
                f"{batch_size} is no multiple of {num_processes}"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches

    def groups(self, size: int) -> Iterator[tuple[list[Any], list[Any]]]:
        """Each group of up to ``size`` samples, with the first one of the pass."""
        return _groups(self.dataset, size)

    @property
    def piece(self) -> int:
        """Samples of a group that this rank keeps."""
        return max(1, self.batch_size // self.num_processes) if self.split_batches else self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Passed on to the data set, where it has such a method."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        group = self.piece * self.num_processes
        full, left = divmod(len(self.dataset), group)
        if self.drop_last or not left:
            return full * self.piece
        if self.even_batches:
            return (full + 1) * self.piece
        return full * self.piece + min(self.piece, max(0, left - self.process_index * self.piece))

    def __iter__(self) -> Iterator[Any]:
        piece, world = self.piece, self.num_processes
        own = slice(self.process_index * piece, (self.process_index + 1) * piece)
        for group, start in self.groups(piece * world):
            if len(group) == piece * world:
                yield from group[own]
                continue
            if self.drop_last:
                return
            counts = [min(piece, max(0, len(group) - rank * piece)) for rank in range(world)]
            if self.even_batches:
                again = itertools.cycle(start)
                group.extend(itertools.islice(again, piece * world - len(group)))
            for sample in group[own]:
                yield Marked(sample, counts) if self.marks and self.even_batches else sample
            return


def _groups(dataset: Any, size: int) -> Iterator[tuple[list[Any], list[Any]]]:
    stream = iter(dataset)
    start: list[Any] = []
    while group := list(itertools.islice(stream, size)):
        start = start or group
        yield group, start


class MarkedShard(IterableDatasetShard):
    """As its base, for a loader whose collate function is a :class:`MarkingCollate`."""

    marks = True


class BatchedShard(IterableDataset[Any]):
    """This rank's part of an iterable data set that yields whole batches: every ``num_processes``-th.

    Missing batches of the last round are repeated from the first ones, and marked as not real.
    """

    def __init__(
        self, dataset: Any, num_processes: int, process_index: int, *, drop_last: bool, even_batches: bool
    ) -> None:
        self.dataset = dataset
        self.num_processes = num_processes
        self.process_index = process_index
        self.drop_last = drop_last
        self.even_batches = even_batches

    def groups(self, size: int) -> Iterator[tuple[list[Any], list[Any]]]:
        """Each group of up to ``size`` samples, with the first one of the pass."""
        return _groups(self.dataset, size)

    def set_epoch(self, epoch: int) -> None:
        """Passed on to the data set, where it has such a method."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        full, left = divmod(len(self.dataset), self.num_processes)
        if self.drop_last or not left:
            return full
        return full + int(self.even_batches or self.process_index < left)

    def __iter__(self) -> Iterator[Any]:
        world, rank = self.num_processes, self.process_index
        for group, start in self.groups(world):
            if len(group) == world:
                yield group[rank]
            elif not self.drop_last:
                counts = [UNBOUNDED] * len(group) + [0] * (world - len(group))
                if self.even_batches:
                    whole = [*group, *itertools.islice(itertools.cycle(start), world - len(group))]
                    yield Marked(whole[rank], counts)
                elif rank < len(group):
                    yield group[rank]


class ResumableMarkedShard(ResumableGroups, MarkedShard):
    """For a loader that keeps the place of its data set."""


class ResumableBatchedShard(ResumableGroups, BatchedShard):
    """For a loader that keeps the place of its data set."""


class Marked:
    """A sample or batch from a group that holds filling; ``counts`` are the real samples of each rank."""

    def __init__(self, value: Any, counts: list[int]) -> None:
        self.value = value
        self.counts = counts

    def pin_memory(self, device: Any = None) -> Marked:
        """What a loader's pinning thread calls."""
        from torch.utils.data._utils.pin_memory import pin_memory

        pinned = pin_memory(self.value, device)  # type: ignore[no-untyped-call]
        return Marked(pinned, self.counts)


class MarkingCollate:
    """Collates marked samples into a marked batch."""

    def __init__(self, collate: Callable[[Any], Any], batched: bool) -> None:
        self.collate = collate
        self.batched = batched
        """Whether lists of samples come in; otherwise single items."""

    def __call__(self, samples: Any) -> Any:
        if not self.batched:
            if isinstance(samples, Marked):
                return Marked(self.collate(samples.value), samples.counts)
            return self.collate(samples)
        counts = next((s.counts for s in samples if isinstance(s, Marked)), None)
        if counts is None:
            return self.collate(samples)
        return Marked(self.collate([s.value if isinstance(s, Marked) else s for s in samples]), counts)
