"""Batches of indices, shared out among the ranks.

Every rank walks the whole batch sampler and keeps its own part, so all of them know what the others
have. Two ways to share (three ranks, batch size 2, seven samples; ``.`` marks filling)::

    one batch each                      each batch split (batch size 6)
    step 0: [0 1] [2 3] [4 5]           step 0: [0 1] [2 3] [4 5]
    step 1: [6 .0] [.1 .2] [.3 .4]      step 1: [6 .0] [.1 .2] [.3 .4]

Filling continues from the start of the order. Where a step holds filling, :class:`ShardPass` says how
many of each rank's samples are real, and they always come first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler


class ShardPass:
    """What a shard knows of one pass, ahead of the loader, which may be several batches behind."""

    __slots__ = ("last_step", "partial")

    def __init__(self) -> None:
        self.partial: dict[int, list[int]] = {}
        """By step: the real samples of each rank, where not all are real."""
        self.last_step: int | None = None
        """The last step of this rank; known before its batch is handed out."""

    def watch(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield ``batches``, having noted of the last one that it is the last."""
        step = -1
        coming: Any = None
        for batch in batches:
            if step >= 0:
                yield coming
            coming = batch
            step += 1
        if step >= 0:
            self.last_step = step
            yield coming


class BatchSamplerShard(BatchSampler):
    """This rank's part of a batch sampler.

    Args:
        batch_sampler: yields lists of indices. One without ``batch_size`` may yield batches of any
            lengths; whole batches are repeated then to give every rank one.
        num_processes: number of ranks.
        process_index: this rank.
        split_batches: cut each batch into one piece a rank, rather than give each rank every
            ``num_processes``-th batch.
        even_batches: fill up, so that all ranks get equally many batches, all full. Otherwise late
            ranks may get a shorter last batch, or one batch less.

    Raises:
        ValueError: ``split_batches`` and a batch size that the number of ranks doesn't divide.
    """

    batch_size: int | None  # type: ignore[assignment]
    """Samples in a full batch of the batch sampler; None when that varies."""

    def __init__(
        self,
        batch_sampler: Any,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size = getattr(batch_sampler, "batch_size", None)
        self.drop_last = bool(getattr(batch_sampler, "drop_last", False))
        self.latest = ShardPass()
        """What is known of the pass that began last."""
        if split_batches and self.batch_size is not None and self.batch_size % num_processes:
            raise ValueError(
                f"split_batches needs a batch size that the number of processes divides, but "
                f"{self.batch_size} is no multiple of {num_processes}"
            )

    @property
    def sampler(self) -> Any:  # type: ignore[override]
        """The sampler behind the batch sampler, where it has one."""
        return getattr(self.batch_sampler, "sampler", None)

    @property
    def total_length(self) -> int:
        """Batches over all ranks."""
        return len(self.batch_sampler)

    def __len__(self) -> int:
        total, world, rank = len(self.batch_sampler), self.num_processes, self.process_index
        if world == 1:
            return total
        if self.split_batches:
            return total - 1 if self._last_piece_is_missing() else total
        if self.drop_last:
            return total // world
        if self.even_batches:
            return (total + world - 1) // world
        return total // world + int(rank < total % world)

    def _last_piece_is_missing(self) -> bool:
        if self.even_batches or self.drop_last or self.batch_size is None:
            return False
        try:
            samples = len(self.batch_sampler.sampler)
        except (AttributeError, TypeError):
            return False
        last = samples % self.batch_size
        return 0 < last <= self.process_index * (self.batch_size // self.num_processes)

    def __iter__(self) -> Iterator[list[int]]:
        # Not a generator: the pass begins when it is asked for, not with its first batch.
        record = self.latest = ShardPass()
        if self.num_processes == 1:
            own = iter(self.batch_sampler)
        elif type(self.batch_sampler) is BatchSampler:
            own = self._rounds(self.batch_sampler, record)
        elif self.split_batches:
            own = self._split(record)
        else:
            own = self._take_turns(record)
        return record.watch(own)

    def _rounds(self, plain: BatchSampler, record: ShardPass) -> Iterator[list[int]]:
        """Both ways for torch's own batch sampler, whose batches needn't be built to know them."""
        world, rank = self.num_processes, self.process_index
        piece = plain.batch_size // world if self.split_batches else plain.batch_size
        first, after = rank * piece, (rank + 1) * piece
        indices = _indices(plain.sampler)
        start: list[int] | None = None
        step = 0
        while len(group := list(itertools.islice(indices, piece * world))) == piece * world:
            start = start or group
            yield group[first:after]
            step += 1
        if not group or self.drop_last:
            return
        if self.even_batches:
            record.partial[step] = [min(piece, max(0, len(group) - r * piece)) for r in range(world)]
            again = itertools.cycle(start or list(group))
            group.extend(itertools.islice(again, piece * world - len(group)))
        if own := group[first:after]:
            yield own

    def _take_turns(self, record: ShardPass) -> Iterator[list[int]]:
        world, rank = self.num_processes, self.process_index
        start = _Start(world * (self.batch_size or 1), self.even_batches and not self.drop_last)
        step = 0
        # One full round is held back: only the last one can be short.
        held: list[list[int]] | None = None
        coming: list[list[int]] = []
        for batch in self.batch_sampler:
            if not coming and held is not None:
                yield held[rank]
                step, held = step + 1, None
            start.note(batch)
            coming.append(batch)
            if len(coming) == world:
                held, coming = coming, []
        last = coming or held
        if not last or (self.drop_last and len(last) < world):
            return
        if not self.even_batches or self.drop_last:
            if rank < len(last):
                yield last[rank]
            return
        counts = [len(batch) for batch in last] + [0] * (world - len(last))
        filled = self._fill(last, start)
        if counts != [len(batch) for batch in filled]:
            record.partial[step] = counts
        yield filled[rank]

    def _fill(self, last: list[list[int]], start: _Start) -> list[list[int]]:
        if self.batch_size is None:
            repeated = itertools.islice(itertools.cycle(start.batches), self.num_processes - len(last))
            return [*last, *repeated]
        again = itertools.cycle(start.samples)
        batches = [list(batch) for batch in last] + [[] for _ in range(self.num_processes - len(last))]
        for batch in batches:
            batch.extend(itertools.islice(again, max(0, self.batch_size - len(batch))))
        return batches

    def _split(self, record: ShardPass) -> Iterator[list[int]]:
        world, rank = self.num_processes, self.process_index
        # Of a batch of unknown length every rank gets a piece: its length couldn't be foretold else.
        even = self.even_batches or self.batch_size is None
        start = _Start(self.batch_size or world, even)
        for step, batch in enumerate(self.batch_sampler):
            start.note(batch)
            size = self.batch_size or -(-len(batch) // world) * world
            piece = size // world
            if even and len(batch) < size:
                record.partial[step] = [min(piece, max(0, len(batch) - r * piece)) for r in range(world)]
                again = itertools.cycle(start.samples)
                whole = [*batch, *itertools.islice(again, size - len(batch))]
            else:
                whole = batch
            own = whole[rank * piece : (rank + 1) * piece]
            if own:
                yield own


def _indices(sampler: Any) -> Iterator[int]:
    """What ``sampler`` yields; a permutation without going through it one by one, as a generator would."""
    if type(sampler) is not RandomSampler or sampler.replacement or sampler.generator is None:
        return iter(sampler)
    count = len(sampler.data_source)
    if sampler.num_samples != count:
        return iter(sampler)
    order: list[int] = torch.randperm(count, generator=sampler.generator).tolist()
    # RandomSampler draws once more, for a remainder that is empty here; later passes depend on it.
    torch.randperm(count, generator=sampler.generator)
    return iter(order)


class _Start:
    """The first samples of a pass, kept to fill up the last step with."""

    def __init__(self, samples: int, wanted: bool) -> None:
        self.wanted = samples if wanted else 0
        self.samples: list[int] = []
        self.batches: list[list[int]] = []

    def note(self, batch: Iterable[int]) -> None:
        if len(self.samples) < self.wanted:
            indices = list(batch)
            self.samples.extend(indices)
            self.batches.append(indices)


class SampleShard:
    """This rank's part of a sampler whose items are loaded one by one, without batching.

    As :class:`BatchSamplerShard` with batches of one, except that items are whatever the sampler yields.
    """

    def __init__(self, sampler: Any, num_processes: int, process_index: int, even_batches: bool) -> None:
        self.sampler = sampler
        self.num_processes = num_processes
        self.process_index = process_index
        self.even_batches = even_batches
        self.latest = ShardPass()

    def __len__(self) -> int:
        full, left = divmod(len(self.sampler), self.num_processes)
        one_more = left > 0 if self.even_batches else self.process_index < left
        return full + int(one_more)

    def __iter__(self) -> Iterator[Any]:
        record = self.latest = ShardPass()
        return record.watch(self._own(record))

    def _own(self, record: ShardPass) -> Iterator[Any]:
        world, rank = self.num_processes, self.process_index
        start: list[Any] = []
        items: list[Any] = []
        step = 0
        for item in self.sampler:
            if len(start) < world:
                start.append(item)
            items.append(item)
            if len(items) == world:
                yield items[rank]
                step, items = step + 1, []
        if not items:
            return
        if rank < len(items):
            own = items[rank]
        elif self.even_batches:
            own = start[(rank - len(items)) % len(start)]
        else:
            return
        if self.even_batches:
            # An item has no length here: all of it is real, or none.
            record.partial[step] = [UNBOUNDED] * len(items) + [0] * (world - len(items))
        yield own


UNBOUNDED = 1 << 62
"""Stands for "all samples" in counts of real samples."""
