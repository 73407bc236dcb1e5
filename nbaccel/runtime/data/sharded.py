"""The loader for data of which each rank reads its own part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from nbaccel.runtime.data import loops
from nbaccel.runtime.data.batch_shard import BatchSamplerShard, ShardPass
from nbaccel.runtime.data.loader import PreparedLoader, refuse_mesh
from nbaccel.runtime.data.movers import Mover, mover_for
from nbaccel.runtime.data.order import EpochOrder
from nbaccel.runtime.data.samplers import find_sampler
from nbaccel.runtime.data.stateful import keeps_its_place


class DataLoaderShard(PreparedLoader):
    """Each rank reads its own part of the data.

    Made by hand it doesn't share the data out: that is for the data set or the sampler to do, for
    instance a :class:`~nbaccel.runtime.data.batch_shard.BatchSamplerShard`.

    Args:
        dataset: as of :class:`torch.utils.data.DataLoader`.
        device: where batches go; None leaves them.
        rng_types, synchronized_generator: accepted for compatibility; ranks agree on the order of each
            pass in any case.
        skip_batches: batches to leave out at the start of each pass.
        use_stateful_dataloader: start a pass whose state was loaded after the batches that were done.
        torch_device_mesh: must be None; processes aren't laid out in a mesh.
        iteration: the epoch that the next pass is for.
        kwargs: as of :class:`torch.utils.data.DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        device: torch.device | None = None,
        rng_types: list[Any] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        **kwargs: Any,
    ) -> None:
        from nbaccel.runtime import runtime

        refuse_mesh(torch_device_mesh)
        base: DataLoader[Any] = DataLoader(dataset, **kwargs)
        communicator = runtime.current().communicator
        self._drive(
            base,
            device=device,
            non_blocking=_non_blocking,
            order=None
            if isinstance(dataset, IterableDataset)
            else EpochOrder(find_sampler(base), communicator),
            shard=base.batch_sampler if isinstance(base.batch_sampler, BatchSamplerShard) else None,
            num_processes=communicator.world_size,
            skip=skip_batches,
            iteration=iteration,
        )
        self.rng_types, self.synchronized_generator = rng_types, synchronized_generator
        self.resumes = use_stateful_dataloader

    def _batches(self, source: Iterator[Any], loop: loops.Loop) -> Iterator[Any]:
        mover = mover_for(self.device, self.non_blocking)
        # A shard knows the last batch by its indices. That spares reading one batch ahead, which is worth
        # its memory only where batches can be copied ahead too.
        record = None if self.shard is None else self.shard.latest
        if record is None or mover.ahead:
            return self._read_ahead(source, loop, mover, record)
        return self._as_they_come(source, loop, mover, record)

    def _as_they_come(
        self, source: Iterator[Any], loop: loops.Loop, mover: Mover, record: ShardPass
    ) -> Iterator[Any]:
        finish, partial = mover.finish, record.partial
        loops.enter(loop)
        for batch in source:
            loop.index += 1
            loop.at_end = loop.index == record.last_step
            loop.counts = partial.get(loop.index) if partial else None
            yield finish(batch)

    def _read_ahead(
        self, source: Iterator[Any], loop: loops.Loop, mover: Mover, record: ShardPass | None
    ) -> Iterator[Any]:
        try:
            coming = next(source)
        except StopIteration:
            return
        loops.enter(loop)
        batch, counts = self._full(coming, None)
        started = mover.start(batch)
        tells = keeps_its_place(self.base_dataloader)
        while not loop.at_end:
            running, running_counts = started, counts
            counts = None
            if tells:
                self._note_place(loop)
            try:
                coming = next(source)
            except StopIteration:
                loop.at_end = True
            else:
                batch, counts = self._full(coming, None)
                started = mover.start(batch)
            loop.index += 1
            if running_counts is None and record is not None:
                running_counts = record.partial.get(loop.index)
            loop.counts = running_counts
            yield mover.finish(running)
            if mover.done is not None:
                mover.done()
