"""From a plain DataLoader to one that shares its data among the ranks."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from nbaccel.runtime.collectives.communicator import Communicator
from nbaccel.runtime.data.agreed import agreed
from nbaccel.runtime.data.batch_shard import BatchSamplerShard, SampleShard
from nbaccel.runtime.data.dispatcher import DataLoaderDispatcher
from nbaccel.runtime.data.iterable_shard import (
    BatchedShard,
    MarkedShard,
    MarkingCollate,
    ResumableBatchedShard,
    ResumableMarkedShard,
)
from nbaccel.runtime.data.loader import (
    PreparedLoader,
    iterates_its_own_way,
    loads_by_index,
    refuse_mesh,
)
from nbaccel.runtime.data.order import EpochOrder
from nbaccel.runtime.data.samplers import SeedableRandomSampler, SkipBatchSampler, find_sampler
from nbaccel.runtime.data.sharded import DataLoaderShard
from nbaccel.runtime.data.stateful import (
    is_stateful_loader,
    keeps_its_place,
    loader_class,
    with_state,
)
from nbaccel.runtime.devices import device_named
from nbaccel.runtime.gauges import gauges

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
    if options.get("in_order"):
        del options["in_order"]  # the default, which older loaders of torchdata don't know by name
    return options


def prepare_data_loader(
    dataloader: DataLoader[Any],
    device: torch.device | None = None,
    num_processes: int = 1,
    process_index: int = 0,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: list[Any] | None = None,  # noqa: ARG001
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Callable[..., Any] | None = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
    *,
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
        rng_types: accepted for compatibility; the ranks agree on the order of each pass in any case.
        dispatch_batches: rank 0 reads and hands out. By default for iterable data sets whose batches are
            moved to the device.
        even_batches: fill up so that all ranks get equally many full batches.
        slice_fn_for_dispatch: cuts a part out of a joined batch, where slicing can't.
        use_seedable_sampler: replace a random sampler by one whose order depends on seed and epoch.
        data_seed: seed of that order.
        non_blocking: copy to the device without waiting.
        use_stateful_dataloader: a loader whose state was loaded starts its next pass after the batches
            that were done; so does a loader of torchdata's in any case. Where torchdata is installed, an
            iterable data set with ``state_dict`` and ``load_state_dict`` isn't read again up to there.
        torch_device_mesh: must be None; processes aren't laid out in a mesh.
        communicator: connects the ranks; None when this process is to act as one of several without
            talking to them.

    Raises:
        ValueError: ``split_batches`` and a batch size that the number of ranks doesn't divide, or a mesh.

    Warns:
        UserWarning: the loader's class has an ``__iter__`` of its own, which ranks that each read their
            own part go without.
    """
    refuse_mesh(torch_device_mesh)
    if isinstance(dataloader, PreparedLoader):
        dataloader = dataloader.source
    plain, asked_to_dispatch = dataloader, dispatch_batches
    if num_processes > 1 and not dispatch_batches and iterates_its_own_way(dataloader):
        _warn_of_lost_iteration(dataloader, num_processes)
    iterable = isinstance(dataloader.dataset, IterableDataset)
    if use_seedable_sampler and not iterable:
        dataloader = _with_seedable_sampler(dataloader, data_seed)
    if use_stateful_dataloader:
        dataloader = with_state(dataloader, loading_options(dataloader))
    placement: dict[str, Any] = {"device": device if put_on_device else None, "non_blocking": non_blocking}
    if dispatch_batches is None:
        dispatch_batches = iterable and put_on_device
    prepared: PreparedLoader
    if dispatch_batches and num_processes > 1:
        if communicator is None:
            raise ValueError(
                "dispatch_batches needs the other ranks, but there is no way to reach them here; prepare the "
                "loader through an Accelerator, or pass dispatch_batches=False"
            )
        _check_split(dataloader, num_processes, split_batches=split_batches)
        prepared = DataLoaderDispatcher.around(
            dataloader,
            communicator=communicator,
            split_batches=split_batches,
            slice_fn=slice_fn_for_dispatch,
            # Only rank 0 reads, so there is nothing to agree on.
            order=None if iterable else EpochOrder(find_sampler(dataloader)),
            **placement,
        )
    elif num_processes == 1:
        order = None if iterable else EpochOrder(find_sampler(dataloader))
        prepared = DataLoaderShard.around(dataloader, order=order, **placement)
    elif iterable:
        base = _shard_iterable(dataloader, num_processes, process_index, split_batches, even_batches)
        prepared = DataLoaderShard.around(base, num_processes=num_processes, **placement)
    else:
        shared = _without_distributed_sampler(dataloader, num_processes)
        settled = agreed(shared.batch_sampler, communicator)
        base, shard = _shard_indexed(
            shared, settled, num_processes, process_index, split_batches, even_batches
        )
        dataloader = shared
        order = EpochOrder(find_sampler(dataloader), communicator)
        prepared = DataLoaderShard.around(
            base, order=order, shard=shard, num_processes=num_processes, **placement
        )
    prepared.fills = (
        even_batches and put_on_device and device is not None and device_named(device.type).static_shapes
    )
    prepared.source = plain
    prepared.resumes = use_stateful_dataloader or is_stateful_loader(plain)
    prepared.made_with = {
        "split_batches": split_batches,
        "put_on_device": put_on_device,
        "dispatch_batches": asked_to_dispatch,
        "even_batches": even_batches,
        "slice_fn_for_dispatch": slice_fn_for_dispatch,
        "use_seedable_sampler": use_seedable_sampler,
        "data_seed": data_seed,
        "non_blocking": non_blocking,
        "use_stateful_dataloader": use_stateful_dataloader,
    }
    return prepared


def prepared_here(plain: DataLoader[Any], options: dict[str, Any], iteration: int) -> PreparedLoader:
    """``plain`` prepared for the world of this process; a loader that was prepared elsewhere arrives so."""
    from nbaccel.runtime import runtime

    now = runtime.current()
    prepared = prepare_data_loader(
        plain,
        now.device,
        now.environment.world_size,
        now.environment.rank,
        communicator=now.communicator,
        **options,
    )
    prepared.iteration = iteration
    prepared.counts_from = (gauges().begun, iteration)
    return prepared


def _warn_of_lost_iteration(dataloader: DataLoader[Any], world: int) -> None:
    name = type(dataloader).__qualname__
    warnings.warn(
        f"{name} has an __iter__ of its own, which is lost where {world} processes each read a part of the "
        "data: they read through a plain DataLoader. Move what it does into the data set, the collate_fn or "
        "a batch sampler, or set DataLoaderConfiguration(dispatch_batches=True), and rank 0 reads through "
        f"{name} for all",
        stacklevel=5,
    )


def _check_split(dataloader: DataLoader[Any], num_processes: int, *, split_batches: bool) -> None:
    size = dataloader.batch_size or getattr(dataloader.batch_sampler, "batch_size", None)
    if split_batches and size and size % num_processes:
        raise ValueError(
            f"split_batches needs a batch size that the number of processes divides, but {size} is no "
            f"multiple of {num_processes}"
        )


def _shard_iterable(
    dataloader: DataLoader[Any], world: int, rank: int, split_batches: bool, even_batches: bool
) -> DataLoader[Any]:
    size = dataloader.batch_size
    options = loading_options(dataloader)
    collate = options.pop("collate_fn")
    dataset: Any
    kind, further = loader_class(dataloader)
    resumable = keeps_its_place(dataloader)
    if size is None:
        dataset = (ResumableBatchedShard if resumable else BatchedShard)(
            dataloader.dataset, world, rank, drop_last=dataloader.drop_last, even_batches=even_batches
        )
    else:
        dataset = (ResumableMarkedShard if resumable else MarkedShard)(
            dataloader.dataset, size, dataloader.drop_last, world, rank, split_batches, even_batches
        )
    return kind(
        dataset,
        batch_size=None if size is None else dataset.piece,
        drop_last=dataloader.drop_last if size is not None else False,
        collate_fn=MarkingCollate(collate, batched=size is not None),
        **options,
        **further,
    )


def _shard_indexed(
    dataloader: DataLoader[Any],
    batch_sampler: Any,
    world: int,
    rank: int,
    split_batches: bool,
    even_batches: bool,
) -> tuple[DataLoader[Any], Any]:
    shard: Any
    if batch_sampler is not None:
        shard = BatchSamplerShard(batch_sampler, world, rank, split_batches, even_batches)
        placed: dict[str, Any] = {"batch_sampler": shard}
    elif isinstance(dataloader.sampler, BatchSampler):
        # The data set takes whole lists of indices.
        shard = BatchSamplerShard(dataloader.sampler, world, rank, split_batches, even_batches)
        placed = {"sampler": shard, "batch_size": None}
    else:
        shard = SampleShard(dataloader.sampler, world, rank, even_batches)
        placed = {"sampler": shard, "batch_size": None}
    return DataLoader(dataloader.dataset, **placed, **loading_options(dataloader)), shard


def _without_distributed_sampler(dataloader: DataLoader[Any], world: int) -> DataLoader[Any]:
    """A loader that was sharded by hand already, as it would be without; else every sample came twice."""
    sampler = dataloader.sampler
    if not isinstance(sampler, DistributedSampler) or sampler.num_replicas != world:
        return dataloader
    warnings.warn(
        "the loader has a DistributedSampler, but prepare() shares the data among the processes itself: the "
        "sampler is replaced by one over the whole data set. Leave it out",
        stacklevel=5,
    )
    size = dataloader.batch_size or 1
    order: Any = SequentialSampler(dataloader.dataset)  # type: ignore[arg-type]
    if sampler.shuffle:
        order = SeedableRandomSampler(dataloader.dataset, data_seed=sampler.seed)  # type: ignore[arg-type]
    batches = BatchSampler(order, size, dataloader.drop_last)
    return DataLoader(dataloader.dataset, batch_sampler=batches, **loading_options(dataloader))


def _with_seedable_sampler(dataloader: DataLoader[Any], data_seed: int | None) -> DataLoader[Any]:
    sampler = find_sampler(dataloader)
    if type(sampler) is not RandomSampler or type(dataloader.batch_sampler) is not BatchSampler:
        return dataloader
    if iterates_its_own_way(dataloader):
        return dataloader  # another loader with the new sampler would iterate in the plain way
    seedable = SeedableRandomSampler(
        sampler.data_source, sampler.replacement, sampler._num_samples, sampler.generator, data_seed
    )
    batches = BatchSampler(seedable, dataloader.batch_sampler.batch_size, dataloader.batch_sampler.drop_last)
    return DataLoader(dataloader.dataset, batch_sampler=batches, **loading_options(dataloader))


def skip_first_batches(dataloader: DataLoader[Any], num_batches: int = 0) -> DataLoader[Any]:
    """A loader that leaves out the first ``num_batches`` batches of each pass.

    ``dataloader`` itself isn't changed, so use the result for the interrupted epoch and the original
    for the later ones. All other options stay. With a sampler no skipped sample is read; an iterable
    data set has to be read up to there.
    """
    if num_batches == 0:
        return dataloader
    if not isinstance(dataloader, PreparedLoader):
        if not loads_by_index(dataloader):
            return DataLoaderShard.around(dataloader, skip=num_batches)
        return _without_first(dataloader, num_batches)
    # The copy shares the position, so a checkpoint in the interrupted epoch finds it at the original.
    skipped = copy.copy(dataloader)
    base = dataloader.base_dataloader
    # A round of the dispatcher is one batch of the base for each rank.
    width = dataloader.num_processes if isinstance(dataloader, DataLoaderDispatcher) else 1
    width = 1 if dataloader.split_batches else width
    if not loads_by_index(base):
        skipped.skip = dataloader.skip + num_batches
    else:
        skipped.base_dataloader = _without_first(base, num_batches * width)
        skipped.first = dataloader.first + num_batches
    return skipped


def _without_first(dataloader: DataLoader[Any], num_batches: int) -> DataLoader[Any]:
    batches = SkipBatchSampler(dataloader.batch_sampler, num_batches)
    return DataLoader(dataloader.dataset, batch_sampler=batches, **loading_options(dataloader))
