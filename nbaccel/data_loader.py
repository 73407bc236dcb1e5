"""Sharing data among the ranks, under the name that scripts import."""

from __future__ import annotations

from nbaccel.left_out import explain_missing
from nbaccel.runtime.data.batch_shard import (
    BatchSamplerShard,
)
from nbaccel.runtime.data.dispatcher import (
    DataLoaderDispatcher,
)
from nbaccel.runtime.data.iterable_shard import (
    IterableDatasetShard,
)
from nbaccel.runtime.data.prepare import (
    prepare_data_loader,
    skip_first_batches,
)
from nbaccel.runtime.data.samplers import (
    SeedableRandomSampler,
    SkipBatchSampler,
)
from nbaccel.runtime.data.sharded import (
    DataLoaderShard,
)

__all__ = [
    "BatchSamplerShard",
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "IterableDatasetShard",
    "SeedableRandomSampler",
    "SkipBatchSampler",
    "prepare_data_loader",
    "skip_first_batches",
]

__getattr__ = explain_missing(__name__)
