"""Property tests of sharding: for any size, batch, number of ranks and mode, against one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from nbaccel.runtime.data import loops
from nbaccel.runtime.data.dispatch import RoundReader
from nbaccel.runtime.data.prepare import prepare_data_loader, skip_first_batches
from tests.runtime.ranks import run_ranks

sizes = st.integers(0, 23)
batches = st.integers(1, 5)
worlds = st.integers(1, 4)
modes = settings(max_examples=150, deadline=None)


class Stream(IterableDataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        return iter(range(self.n))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.n


def identity(samples: list[int]) -> list[int]:
    return samples


Step = tuple[list[int], list[int] | None]


def steps_of(prepared: Any) -> list[Step]:
    """Each batch, and the real samples of each rank where not all are real."""
    return [(list(batch), loops.current().counts) for batch in prepared]


def shards(loader: DataLoader[Any], world: int, **options: Any) -> list[list[Step]]:
    """By rank: each batch, and the real samples of each rank where not all are real."""
    result = []
    for rank in range(world):
        prepared = prepare_data_loader(
            loader, num_processes=world, process_index=rank, dispatch_batches=False, **options
        )
        steps = steps_of(prepared)
        assert loops.current() is None
        if not isinstance(loader.dataset, Stream) or isinstance(loader.dataset, SizedStream):
            assert len(prepared) == len(steps)
        result.append(steps)
    return result


def gathered(by_rank: list[list[Step]]) -> list[int]:
    """What gather_for_metrics makes of the batches of all ranks."""
    samples: list[int] = []
    for step in range(max(map(len, by_rank), default=0)):
        for rank, batches_of_rank in enumerate(by_rank):
            if step < len(batches_of_rank):
                batch, counts = batches_of_rank[step]
                samples += batch if counts is None else batch[: counts[rank]]
    return samples


@modes
@given(sizes, batches, worlds, st.booleans(), st.booleans(), st.booleans())
def test_map_style(n: int, batch: int, world: int, split: bool, even: bool, drop: bool) -> None:
    size = batch * world if split else batch
    loader = DataLoader(range(n), batch_size=size, drop_last=drop, collate_fn=identity)
    by_rank = shards(loader, world, split_batches=split, even_batches=even)
    group = size if split else size * world
    whole = n - n % (group if drop and world > 1 else size) if drop else n
    if drop and not split and world > 1:
        whole = n // size // world * world * size
    assert gathered(by_rank) == list(range(whole))
    if even or drop:
        lengths = {tuple(len(b) for b, _ in steps) for steps in by_rank}
        assert len(lengths) == 1
        if world > 1:
            assert all(length == batch for length in lengths.pop())
    assert all(b for steps in by_rank for b, _ in steps), "an empty batch"


@modes
@given(sizes, batches, worlds, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_iterable_read_by_all_ranks(
    n: int, batch: int, world: int, split: bool, even: bool, drop: bool, sized: bool
) -> None:
    size = batch * world if split else batch
    loader = DataLoader((SizedStream if sized else Stream)(n), size, drop_last=drop, collate_fn=identity)
    by_rank = shards(loader, world, split_batches=split, even_batches=even)
    group = batch * world
    assert gathered(by_rank) == list(range(n - n % group if drop else n))
    if even:
        assert len({len(steps) for steps in by_rank}) == 1
        if world > 1:
            assert all(len(b) == batch for steps in by_rank for b, _ in steps)


@modes
@given(st.lists(st.integers(1, 5), max_size=12), worlds, st.booleans(), st.booleans())
def test_batch_samplers_of_any_lengths(lengths: list[int], world: int, split: bool, even: bool) -> None:
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    sampler = [list(range(s, s + length)) for s, length in zip(starts, lengths, strict=True)]
    loader = DataLoader(range(sum(lengths)), batch_sampler=sampler, collate_fn=identity)
    by_rank = shards(loader, world, split_batches=split, even_batches=even)
    assert gathered(by_rank) == list(range(sum(lengths)))
    if even or split:
        assert len({len(steps) for steps in by_rank}) == 1


@modes
@given(sizes, worlds, st.booleans())
def test_samples_without_batching(n: int, world: int, even: bool) -> None:
    loader = DataLoader(range(n), batch_size=None, collate_fn=lambda x: [x])
    by_rank = shards(loader, world, even_batches=even)
    assert gathered(by_rank) == list(range(n))
    if even:
        assert len({len(steps) for steps in by_rank}) == 1


@modes
@given(sizes, batches, worlds, st.booleans(), st.booleans())
def test_B074_B090_rounds_of_the_dispatcher(n: int, batch: int, world: int, split: bool, drop: bool) -> None:
    size = batch * world if split else batch
    loader = DataLoader(range(n), size, drop_last=drop, collate_fn=identity)
    rounds = list(RoundReader(iter(loader), world, size=size, split=split, drop_last=drop))
    seen = [
        s
        for r in rounds
        for k, part in enumerate(r.parts)
        for s in part[: None if r.counts is None else r.counts[k]]
    ]
    group = batch * world
    assert seen == list(range(n - n % group if drop else n))
    for r in rounds:
        assert len(r.parts) == world
        assert len({len(part) for part in r.parts}) == 1
        assert all(r.parts)


@modes
@given(st.integers(1, 23), batches, worlds, st.integers(0, 6))
def test_B132_skipping_reads_nothing_and_keeps_the_rest(n: int, batch: int, world: int, skip: int) -> None:
    read: list[int] = []

    class Counted:
        def __len__(self) -> int:
            return n

        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    for rank in range(world):
        prepared = prepare_data_loader(
            DataLoader(Counted(), batch, collate_fn=identity), num_processes=world, process_index=rank
        )
        whole = steps_of(prepared)
        read.clear()
        skipped = skip_first_batches(prepared, skip)
        rest = steps_of(skipped)
        assert rest == whole[skip:]
        assert len(skipped) == len(rest)
        assert len(read) == sum(len(b) for b, _ in rest)
        assert list(prepared) == [b for b, _ in whole]


@pytest.mark.parametrize(
    ("n", "b", "world", "options", "expected"),
    [
        (7, 2, 2, {}, [2, 2]),
        (10, 4, 2, {"split_batches": True}, [3, 3]),
        (7, 2, 3, {"even_batches": False}, [2, 1, 1]),
    ],
)
def test_B080_the_length_is_the_number_of_batches(
    n: int, b: int, world: int, options: dict[str, bool], expected: list[int]
) -> None:
    by_rank = shards(DataLoader(range(n), b, collate_fn=identity), world, **options)
    assert [len(steps) for steps in by_rank] == expected


def test_B081_a_batch_that_cannot_be_split_names_both_numbers() -> None:
    for dataset in (range(8), Stream(8)):
        with pytest.raises(ValueError, match=r"8 is no multiple of 3"):
            prepare_data_loader(
                DataLoader(dataset, 8), num_processes=3, split_batches=True, dispatch_batches=False
            )


def test_B083_the_users_sampler_drives_the_order() -> None:
    loader = DataLoader(range(8), 2, sampler=[7, 6, 5, 4, 3, 2, 1, 0], collate_fn=identity)
    by_rank = shards(loader, 2)
    assert [b for b, _ in by_rank[0]] == [[7, 6], [3, 2]]
    assert [b for b, _ in by_rank[1]] == [[5, 4], [1, 0]]


def test_B075_every_loading_option_survives() -> None:
    options: dict[str, Any] = {
        "num_workers": 2,
        "collate_fn": identity,
        "timeout": 7,
        "worker_init_fn": print,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "drop_last": True,
        "multiprocessing_context": "spawn",
        "pin_memory": True,
        "generator": torch.Generator(),
        "in_order": False,
    }
    loader = DataLoader(range(8), 2, **options)
    for name, value in options.items():
        prepared = prepare_data_loader(loader, num_processes=2)
        got = getattr(prepared, name)
        if name == "drop_last":
            got = prepared.batch_sampler.drop_last
        elif name == "multiprocessing_context":
            got = got.get_start_method()
        assert got == value, name
    assert prepared.batch_size == 2
    stream = shards(DataLoader(Stream(7), 2, drop_last=True, collate_fn=identity), 2)
    assert [[b for b, _ in steps] for steps in stream] == [[[0, 1]], [[2, 3]]]


def test_B079_collate_and_loop_see_the_same_sizes() -> None:
    for split, expected in ((False, 16), (True, 8)):
        seen: list[int] = []

        def collate(samples: list[int], seen: list[int] = seen) -> list[int]:
            seen.append(len(samples))
            return samples

        loader = DataLoader(Stream(32), 16, collate_fn=collate)
        prepared = prepare_data_loader(loader, num_processes=2, split_batches=split, dispatch_batches=False)
        sizes = [len(batch) for batch in prepared]
        assert sizes == seen
        assert set(sizes) == {expected}


def test_B085_an_empty_loader_yields_nothing() -> None:
    assert list(prepare_data_loader(DataLoader([], 2))) == []
    assert list(prepare_data_loader(DataLoader([], 2), num_processes=2)) == []

    class Stops:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            raise StopIteration

    assert None not in list(prepare_data_loader(DataLoader(Stops(), 1, collate_fn=identity)))


def test_B092_B131_skipping_changes_nothing_else() -> None:
    loader = DataLoader(range(8), 2, drop_last=True, collate_fn=identity)
    prepared = prepare_data_loader(loader, num_processes=1, non_blocking=True)
    skipped = skip_first_batches(prepared, 2)
    for name in ("device", "non_blocking", "collate_fn", "batch_size", "num_workers", "total_batch_size"):
        assert getattr(skipped, name) == getattr(prepared, name), name
    assert skipped.batch_sampler.drop_last
    assert (list(skipped), len(list(prepared))) == ([[4, 5], [6, 7]], 4)


def test_B100_iterables_without_length_know_what_is_real() -> None:
    by_rank = shards(DataLoader(Stream(5), 2, collate_fn=identity), 2)
    assert [b for b, _ in by_rank[0]] == [[0, 1], [4, 0]]
    assert [b for b, _ in by_rank[1]] == [[2, 3], [1, 2]]
    assert gathered(by_rank) == [0, 1, 2, 3, 4]


def test_custom_batch_samplers_need_no_length() -> None:
    class Endless(BatchSampler):
        def __iter__(self) -> Any:
            for start in range(0, 6, 2):
                yield [start, start + 1]

    sampler = Endless(SequentialSampler(range(6)), 2, drop_last=False)
    assert gathered(shards(DataLoader(range(6), batch_sampler=sampler, collate_fn=identity), 2)) == list(
        range(6)
    )


class SharesAmongWorkers(Stream):
    def __iter__(self) -> Any:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        return iter(range(info.id, self.n, info.num_workers))


@pytest.mark.parametrize("n", [1, 10, 13])
def test_B087_loader_workers_that_share_the_data_double_nothing(n: int) -> None:
    def both_shards() -> list[list[Step]]:
        return shards(DataLoader(SharesAmongWorkers(n), 2, num_workers=2, collate_fn=identity), 2)

    # In a process of its own: torch sets a signal handler when loader workers are first used.
    (by_rank,) = run_ranks(both_shards, 1)
    # Each worker's stream has an end of its own, so filling comes in the middle of a pass as well.
    assert sorted(gathered(by_rank)) == list(range(n))
    assert len({len(steps) for steps in by_rank}) == 1
