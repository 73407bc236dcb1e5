"""The loader that a training loop gets back from ``prepare``: this rank's batches, on this rank's device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from nbaccel.runtime.data import loops
from nbaccel.runtime.data.order import EpochOrder
from nbaccel.runtime.nested import send_to_device


class PreparedLoader(DataLoader[Any]):
    """A DataLoader to the outside; inside, it drives another one (:attr:`base_dataloader`).

    Attributes that aren't found here are those of the loader inside.

    Args:
        base: loads the batches.
        device: where batches go; None leaves them.
        non_blocking: copy without waiting.
        order: agrees with the other ranks on the order of each pass.
        shard: knows where batches hold filling.
        first: position of the first batch of a pass, when earlier ones are skipped.
    """

    def __init__(
        self,
        base: DataLoader[Any],
        *,
        device: torch.device | None = None,
        non_blocking: bool = False,
        order: EpochOrder | None = None,
        shard: Any = None,
        first: int = 0,
        iteration: int = 0,
    ) -> None:
        # Not DataLoader.__init__, which would build a second set of samplers.
        self.base_dataloader = base
        self.device = device
        self.non_blocking = non_blocking
        self.order = order
        self.shard = shard
        self.first = first
        self.iteration = iteration
        """The epoch that the next pass is for."""
        self.source: Any = base
        """The loader that was prepared; what a later ``prepare`` starts from."""
        self._loop: loops.Loop | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    def __len__(self) -> int:
        return len(self.base_dataloader)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """Samples in a batch of this rank; None when that varies."""
        given = self.base_dataloader.batch_size
        if given is not None:
            return given
        size = getattr(self.base_dataloader.batch_sampler, "batch_size", None)
        if size is not None and getattr(self.shard, "split_batches", False):
            return int(size) // int(self.shard.num_processes)
        return None if size is None else int(size)

    @property
    def total_batch_size(self) -> int:
        """Samples in a batch of all ranks together."""
        own = self.batch_size or 1
        return own * int(getattr(self.shard, "num_processes", 1))

    @property
    def total_dataset_length(self) -> int:
        """Samples in the data set."""
        return len(self.base_dataloader.dataset)  # type: ignore[arg-type]

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch that came last is the last of its pass."""
        return self._loop is not None and self._loop.at_end

    @property
    def remainder(self) -> int:
        """Real samples, over all ranks, in the running batch when it holds filling; else -1."""
        counts = None if self._loop is None else self._loop.counts
        return -1 if counts is None else sum(counts)

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of ``epoch``: the same seed and epoch always give the same order."""
        self.iteration = epoch
        if self.order is not None:
            self.order.choose_epoch()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._begin_pass()
        loop = loops.Loop(self, self._pass_length())
        return self._batches(loop)

    def _begin_pass(self) -> None:
        if self.order is not None:
            self.order.begin(self.iteration)
        dataset = self.base_dataloader.dataset
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(self.iteration)

    def _pass_length(self) -> int | None:
        try:
            return self.first + len(self.base_dataloader)
        except TypeError:
            return None

    def _batches(self, loop: loops.Loop) -> Iterator[Any]:
        device, non_blocking = self.device, self.non_blocking
        source = iter(self.base_dataloader)
        # One batch is read ahead, to know of the last one that it is.
        try:
            coming = next(source)
        except StopIteration:
            self.iteration += 1
            return
        self._loop = loop
        loop.index = self.first - 1
        loops.enter(loop)
        try:
            while not loop.at_end:
                batch = coming
                try:
                    coming = next(source)
                except StopIteration:
                    coming = None
                    loop.at_end = True
                loop.index += 1
                partial = None if self.shard is None else self.shard.partial
                loop.counts = partial.get(loop.index) if partial else None
                yield batch if device is None else send_to_device(batch, device, non_blocking)
            self.iteration += 1
        finally:
            loops.leave(loop)


class DataLoaderShard(PreparedLoader):
    """Each rank reads its own part of the data."""
