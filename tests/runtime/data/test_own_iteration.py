"""Loaders of a class with an ``__iter__`` of its own: kept where it can be, and said where it is lost."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from nbaccel import DataLoaderConfiguration
from nbaccel.accelerator import Accelerator
from nbaccel.runtime.data.prepare import prepare_data_loader, skip_first_batches
from tests.runtime.ranks import run_ranks


class Doubling(DataLoader[int]):
    """Yields twice what the samplers say."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            yield batch * 2


class Renamed(DataLoader[int]):
    """A class of its own that iterates as its base does."""


def test_one_process_reads_through_it_also_when_batches_are_skipped_or_seeded() -> None:
    loader = Doubling(range(6), batch_size=2)
    expected = [[0, 2], [4, 6], [8, 10]]
    prepared = prepare_data_loader(loader)
    assert [batch.tolist() for batch in prepared] == expected
    assert [batch.tolist() for batch in skip_first_batches(prepared, 1)] == expected[1:]
    assert [batch.tolist() for batch in skip_first_batches(loader, 2)] == expected[2:]
    shuffled = prepare_data_loader(Doubling(range(6), shuffle=True), use_seedable_sampler=True)
    assert sorted(int(batch) for batch in shuffled) == [0, 2, 4, 6, 8, 10]


def test_ranks_that_read_apart_say_that_they_lose_it_and_what_keeps_it() -> None:
    with pytest.warns(UserWarning, match=r"Doubling has an __iter__ of its own.*2 processes.*dispatch"):
        prepare_data_loader(Doubling(range(6), batch_size=2), num_processes=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare_data_loader(Renamed(range(6), batch_size=2), num_processes=2)
        prepare_data_loader(DataLoader(range(6)), num_processes=2)


def test_dispatching_keeps_it_on_all_ranks() -> None:
    def on_rank() -> list[list[list[int]]]:
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader = accelerator.prepare(Doubling(range(8), batch_size=2))
        whole = [accelerator.gather(batch).tolist() for batch in loader]
        rest = accelerator.skip_first_batches(loader, 1)
        return [whole, [accelerator.gather(torch.as_tensor(batch)).tolist() for batch in rest]]

    for whole, rest in run_ranks(on_rank, 2):
        assert whole == [[0, 2, 4, 6], [8, 10, 12, 14]]
        assert rest == whole[1:]
