"""From a plain DataLoader to one that shares its data among the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.data.batch_shard import BatchSamplerShard, SampleShard
from nbaccel.runtime.data.loader import DataLoaderShard, PreparedLoader
from nbaccel.runtime.data.order import EpochOrder
from nbaccel.runtime.data.samplers import SeedableRandomSampler, SkipBatchSampler, find_sampler

# Constructor arguments of DataLoader that say how to load, not what. All survive preparation.
_HOW = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def loading_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """The arguments that make another loader load as ``loader`` does."""
    options = {name: getattr(loader, name) for name in _HOW if hasattr(loader, name)}
    if not options.get("num_workers"):
        # Refused by DataLoader without workers, though it stores their defaults.
        for name in ("prefetch_factor", "multiprocessing_context", "persistent_workers"):
            options.pop(name, None)
    return options


def prepare_data_loader(
    dataloader: DataLoader[Any],
    device: torch.device | None = None,
    num_processes: int = 1,
    process_index: int = 0,
    split_batches: bool = False,
    put_on_device: bool = False,
    even_batches: bool = True,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    communicator: Communicator | None = None,
) -> PreparedLoader:
    """A loader that yields rank ``process_index``'s part of what ``dataloader`` yields.

    Args:
        dataloader: the plain loader. Its samplers decide on the order; sharding comes on top.
        device: where batches go, with ``put_on_device``.
        num_processes: number of ranks.
        process_index: this rank.
        split_batches: ``dataloader``'s batch size is that of all ranks together.
        put_on_device: move batches to ``device``.
        even_batches: fill up so that all ranks get equally many full batches.
        use_seedable_sampler: replace a random sampler by one whose order depends on seed and epoch.
        data_seed: seed of that order.
        non_blocking: copy to the device without waiting.
        communicator: connects the ranks; None when this process is to act as one of several without
            talking to them.

    Raises:
        ValueError: ``split_batches`` and a batch size that the number of ranks doesn't divide.
    """
    if isinstance(dataloader, PreparedLoader):
        dataloader = dataloader.source
    if isinstance(dataloader.dataset, IterableDataset):
        raise NotImplementedError("iterable data sets")
    if use_seedable_sampler:
        dataloader = _with_seedable_sampler(dataloader, data_seed)
    order = EpochOrder(find_sampler(dataloader), communicator)
    shard: Any
    if dataloader.batch_sampler is not None:
        shard = BatchSamplerShard(
            dataloader.batch_sampler, num_processes, process_index, split_batches, even_batches
        )
        placed: dict[str, Any] = {"batch_sampler": shard}
    elif isinstance(dataloader.sampler, BatchSampler):
        # The data set takes whole lists of indices.
        shard = BatchSamplerShard(
            dataloader.sampler, num_processes, process_index, split_batches, even_batches
        )
        placed = {"sampler": shard, "batch_size": None}
    else:
        shard = SampleShard(dataloader.sampler, num_processes, process_index, even_batches)
        placed = {"sampler": shard, "batch_size": None}
    if num_processes == 1:
        base, shard = dataloader, None
    else:
        base = DataLoader(dataloader.dataset, **placed, **loading_options(dataloader))
    prepared = DataLoaderShard(
        base,
        device=device if put_on_device else None,
        non_blocking=non_blocking,
        order=order,
        shard=shard,
    )
    prepared.source = dataloader
    return prepared


def _with_seedable_sampler(dataloader: DataLoader[Any], data_seed: int | None) -> DataLoader[Any]:
    sampler = find_sampler(dataloader)
    if type(sampler) is not RandomSampler or type(dataloader.batch_sampler) is not BatchSampler:
        return dataloader
    seedable = SeedableRandomSampler(
        sampler.data_source, sampler.replacement, sampler._num_samples, sampler.generator, data_seed
    )
    batches = BatchSampler(seedable, dataloader.batch_sampler.batch_size, dataloader.batch_sampler.drop_last)
    return DataLoader(dataloader.dataset, batch_sampler=batches, **loading_options(dataloader))


def skip_first_batches(dataloader: DataLoader[Any], num_batches: int = 0) -> DataLoader[Any]:
    """A loader that leaves out the first ``num_batches`` batches of each pass, and reads none of them.

    ``dataloader`` itself isn't changed, so use the result for the interrupted epoch and the original
    for the later ones. All other options stay.
    """
    if num_batches == 0:
        return dataloader
    base = dataloader.base_dataloader if isinstance(dataloader, PreparedLoader) else dataloader
    batches = SkipBatchSampler(base.batch_sampler, num_batches)
    shortened: DataLoader[Any] = DataLoader(base.dataset, batch_sampler=batches, **loading_options(base))
    if not isinstance(dataloader, PreparedLoader):
        return shortened
    skipped = type(dataloader)(
        shortened,
        device=dataloader.device,
        non_blocking=dataloader.non_blocking,
        order=dataloader.order,
        shard=dataloader.shard,
        first=dataloader.first + num_batches,
        iteration=dataloader.iteration,
    )
    skipped.source = dataloader.source
    return skipped
