"""Rank 0 reads the data and hands each rank its part.

A round is one batch for each rank (or one batch that is cut up, with ``split_batches``)::

    rank 0 reads   [0 1] [2 3] | [4 5] [6]           two ranks, batch size 2, seven samples
    rank 0 gets    [0 1]       | [4 5]
    rank 1 gets    [2 3]       | [6 .0]              . filling from the first round

Batches of a full round are handed out as they are, whatever they hold. Only a round that isn't full
is joined and cut anew, in equal parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nbaccel.runtime.data.batch_shard import UNBOUNDED
from nbaccel.runtime.nested import children, is_container, leaves, map_members


@dataclass
class Round:
    """What the ranks get in one step."""

    parts: list[Any]
    """By rank: its batch."""

    counts: list[int] | None = None
    """By rank: its real samples, when there is filling among them."""


class RoundReader:
    """Reads rounds from a loader. Lives on rank 0 only.

    Args:
        batches: yields whole batches.
        world: number of ranks.
        size: samples in a full batch, as the loader says; None when it doesn't.
        split: cut each batch up, rather than give each rank one.
        drop_last: leave out the last round when it isn't full.
        slice_batch: cuts a part out of a joined batch, in place of slicing tensors and lists:
            ``slice_batch(batch, slice, process_index=rank, num_processes=world)``.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        world: int,
        *,
        size: int | None = None,
        split: bool = False,
        drop_last: bool = False,
        slice_batch: Callable[..., Any] | None = None,
    ) -> None:
        self.batches = batches
        self.world = world
        self.size = size
        self.split = split
        self.drop_last = drop_last
        self.slice_batch = slice_batch
        self.start: Any = None
        """The first batch; filling is taken from it."""
        self.by_sample = False
        """Whether batches are plain lists of samples, as with ``collate_fn=list``."""

    def __iter__(self) -> Iterator[Round]:
        wanted = 1 if self.split else self.world
        while read := list(itertools.islice(self.batches, wanted)):
            if self.start is None:
                self.learn(read[0])
            short = self.size is not None and any(self._length(batch) != self.size for batch in read)
            if len(read) == wanted and not short and not self.split:
                yield Round(read)
            elif self.split or not self.drop_last or (len(read) == wanted and not short):
                yield self._cut(read)

    def learn(self, first: Any) -> None:
        """Take the make of the batches from the ``first`` one of a pass, and filling too."""
        self.start = first
        self.by_sample = self.size is not None and is_sample_list(first, self.size)
        self.size = self._length(first)

    def _length(self, batch: Any) -> int | None:
        return len(batch) if self.by_sample else batch_length(batch)

    def _part(self, batch: Any, part: slice, length: int) -> Any:
        return batch[part] if self.by_sample else cut(batch, part, length)

    def _cut(self, read: list[Any]) -> Round:
        world, size = self.world, self.size
        if size is None:
            if self.split:
                raise TypeError(
                    "split_batches with dispatch_batches needs batches that can be cut: containers of "
                    "tensors, or lists with one entry a sample, but the loader yields "
                    f"{type(read[0]).__name__}; turn split_batches off"
                )
            # Nothing is known of their make, so they are handed out whole, the first one again.
            whole = [*read, *[self.start] * (world - len(read))]
            return Round(whole, [UNBOUNDED] * len(read) + [0] * (world - len(read)))
        lengths = [self._length(batch) or 0 for batch in read]
        real = sum(lengths)
        total = (real + world - 1) // world * world
        missing = total - real
        while missing > 0:
            some = min(missing, size)
            read.append(self._part(self.start, slice(0, some), size))
            lengths.append(some)
            missing -= some
        joined = list(itertools.chain(*read)) if self.by_sample else join(read, lengths)
        piece = total // world
        parts = []
        for rank in range(world):
            part = slice(rank * piece, (rank + 1) * piece)
            if self.slice_batch is None:
                parts.append(self._part(joined, part, total))
            else:
                parts.append(self.slice_batch(joined, part, process_index=rank, num_processes=world))
        counts = [min(piece, max(0, real - rank * piece)) for rank in range(world)]
        return Round(parts, counts if real < total else None)


def is_sample_list(value: Any, length: int) -> bool:
    """Whether a list has one entry for each of ``length`` samples, rather than one for each column."""
    if not isinstance(value, list) or len(value) != length:
        return False
    return not all(isinstance(item, torch.Tensor) and item.shape[:1] == (length,) for item in value)


def batch_length(batch: Any) -> int | None:
    """Number of samples: the length of the first tensor, or of the first list of plain values."""
    if isinstance(batch, list) and batch and not any(map(_may_hold_tensors, batch)):
        return len(batch)
    for _, leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return int(leaf.shape[0])
    if is_container(batch):
        for _, item in children(batch):
            found = batch_length(item)
            if found is not None:
                return found
    return None


def _may_hold_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_container(value)


def cut(batch: Any, part: slice, length: int) -> Any:
    """The samples ``part`` of a batch of ``length``: of each tensor and each list with one entry a sample."""
    if isinstance(batch, torch.Tensor):
        return batch[part] if batch.shape[:1] == (length,) else batch
    if is_sample_list(batch, length):
        return batch[part]
    if is_container(batch):
        return map_members(lambda item: cut(item, part, length), batch)
    return batch


def join(batches: list[Any], lengths: list[int]) -> Any:
    """Join batches of ``lengths`` sample by sample. Leaves that aren't per sample are the first batch's."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        per_sample = all(b.shape[:1] == (n,) for b, n in zip(batches, lengths, strict=True))
        return torch.cat(batches) if per_sample else first
    if all(is_sample_list(batch, length) for batch, length in zip(batches, lengths, strict=True)):
        return [item for batch in batches for item in batch]
    if not is_container(first):
        return first
    columns = zip(*([value for _, value in children(batch)] for batch in batches), strict=True)
    joined = iter([join(list(column), lengths) for column in columns])
    return map_members(lambda _: next(joined), first)
