"""Collectives on real ranks: containers, dtypes, shapes, mismatches, and metrics of uneven data."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from nbaccel.accelerator import Accelerator
from nbaccel.runtime.collectives import operations
from nbaccel.runtime.collectives.agreement import CollectiveMismatchError
from nbaccel.runtime.nested import concatenate, send_to_device
from nbaccel.runtime.plugins import DataLoaderConfiguration
from tests.runtime.ranks import RankError, run_ranks


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    name: str = "n"


class Stream(IterableDataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


def identity(samples: list[Any]) -> list[Any]:
    return samples


def test_B088_containers_keep_their_type() -> None:
    t = torch.ones(2)
    assert type(send_to_device(Pair(a=t, b=1), "cpu")) is Pair
    moved = send_to_device(Frozen(t), "cpu")
    assert type(moved) is Frozen
    assert moved.name == "n"
    default = defaultdict(list, x=t)
    assert send_to_device(default, "cpu").default_factory is list
    assert type(send_to_device(OrderedDict(x=t), "cpu")) is OrderedDict
    joined = concatenate([Pair(t, {"k": t}), Pair(t, {"k": t})])
    assert type(joined) is Pair
    assert joined.b["k"].shape == (4,)

    def on_rank() -> list[str]:
        accelerator = Accelerator(cpu=True)
        x = torch.ones(1)
        values = [Pair(x, [x, (x,)]), OrderedDict(x=x), {"x": {"y": x}}, defaultdict(list, x=x)]
        return [type(accelerator.gather(v)).__name__ for v in values]

    assert run_ranks(on_rank, 2)[0] == ["Pair", "OrderedDict", "dict", "defaultdict"]


def test_B106_gather_of_any_dtype_stride_and_shape() -> None:
    dtypes = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16,
              torch.float64, torch.complex64, torch.float8_e4m3fn]  # fmt: skip

    def on_rank() -> dict[str, Any]:
        accelerator = Accelerator(cpu=True)
        rank = accelerator.process_index
        found: dict[str, Any] = {}
        for dtype in dtypes:
            got = accelerator.gather(torch.tensor([rank, 1]).to(dtype))
            assert got.dtype is dtype
            found[str(dtype)] = got.to(torch.complex64).real.tolist()
        found["transposed"] = accelerator.gather((torch.arange(4) + 10 * rank).view(2, 2).t()).tolist()
        found["none"] = list(accelerator.gather(torch.empty(0, 3)).shape)
        found["scalar"] = accelerator.gather(torch.tensor(float(rank))).tolist()
        grad = accelerator.gather(torch.ones(1, requires_grad=True))
        found["grad"] = grad.requires_grad
        found["many"] = [
            x.tolist() for x in accelerator.gather([torch.tensor([rank + i]) for i in range(20)])
        ]
        return found

    for found in run_ranks(on_rank, 2):
        for dtype in dtypes:
            expected = [0, 1, 1, 1]
            assert found[str(dtype)] == expected
        assert found["transposed"] == [[0, 2], [1, 3], [10, 12], [11, 13]]
        assert found["none"] == [0, 3]
        assert found["scalar"] == [0.0, 1.0]
        assert found["grad"] is False
        assert found["many"][19] == [19, 20]


def test_a_mismatch_is_the_same_clear_error_on_all_ranks() -> None:
    def on_rank() -> list[str]:
        accelerator = Accelerator(cpu=True)
        rank = accelerator.process_index
        calls = [
            lambda: accelerator.gather(torch.ones(2 + rank)),
            lambda: accelerator.gather(torch.ones(2, dtype=[torch.float32, torch.int64][rank])),
            lambda: accelerator.gather(torch.ones(2, 3) if rank else torch.ones(3, 2)),
            lambda: accelerator.gather([torch.ones(1)] * (1 + rank)),
            lambda: accelerator.reduce(torch.ones(2 + rank)),
            lambda: accelerator.gather(torch.ones(1)) if rank else accelerator.wait_for_everyone(),
            lambda: accelerator.gather(torch.ones(1)) if rank else accelerator.gather("text"),
        ]
        texts = []
        for call in calls:
            with pytest.raises(CollectiveMismatchError) as caught:
                call()
            texts.append(str(caught.value).partition("\n")[2])
        with pytest.raises(TypeError, match="gather_object"):
            accelerator.gather("text")
        # Nothing is left over: the ranks are still in step.
        assert accelerator.gather(torch.tensor([rank])).tolist() == [0, 1]
        return texts

    first, second = run_ranks(on_rank, 2)
    assert first == second
    assert "rank 0: gather(); value: float32[2]" in first[0]
    assert "rank 1: gather(); value: float32[3]" in first[0]
    assert "wait_for_everyone" in first[5]


def test_B108_mean_and_sum() -> None:
    def on_rank() -> dict[str, Any]:
        accelerator = Accelerator(cpu=True)
        value = accelerator.process_index + 1
        found = {}
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            got = accelerator.reduce({"x": torch.tensor([float(value)], dtype=dtype)}, "mean")["x"]
            assert got.dtype is dtype
            found[str(dtype)] = got.item()
        found["sum"] = accelerator.reduce(torch.tensor(value)).item()
        found["mean of whole numbers"] = accelerator.reduce(torch.tensor(value + 1), "mean").item()
        found["flags"] = accelerator.reduce(torch.tensor([True, value > 1])).tolist()
        found["int16"] = accelerator.reduce(torch.tensor([value], dtype=torch.int16)).tolist()
        found["complex"] = accelerator.reduce(torch.tensor([1j * value])).tolist()
        own = torch.ones(1) * value
        accelerator.reduce(own)
        found["own"] = own.item() == value
        return found

    for found in run_ranks(on_rank, 3):
        assert [found[f"torch.{d}"] for d in ("float32", "float64", "bfloat16", "float16")] == [2.0] * 4
        assert (found["sum"], found["mean of whole numbers"]) == (6, 3.0)
        assert (found["flags"], found["int16"], found["complex"]) == ([3, 2], [6], [6j])
        assert found["own"]
    with pytest.raises(ValueError, match="sum, mean, none"):
        Accelerator(cpu=True).reduce(torch.ones(1), "average")


def test_broadcast_objects_and_padding() -> None:
    def on_rank() -> list[Any]:
        accelerator = Accelerator(cpu=True)
        comm, rank = accelerator._runtime.communicator, accelerator.process_index
        t = (torch.arange(4.0) + rank).view(2, 2).t()
        operations.broadcast(comm, [t], 1)
        objects = operations.broadcast_object_list(comm, [rank, "x"], 1)
        with pytest.raises(ValueError, match="from_process=2"):
            operations.broadcast(comm, t, 2)
        padded = accelerator.pad_across_processes(torch.ones(1 + rank), pad_index=-1)
        first = accelerator.pad_across_processes([torch.ones(2, 1 + rank)], dim=1, pad_first=True)[0]
        gathered = operations.gather_object(comm, [{"r": rank}])
        return [t.tolist(), objects, padded.tolist(), first.tolist(), gathered]

    r0, r1 = run_ranks(on_rank, 2)
    assert r0[0] == r1[0] == [[1.0, 3.0], [2.0, 4.0]]
    assert r0[1] == r1[1] == [1, "x"]
    assert (r0[2], r1[2]) == ([1.0, -1.0], [1.0, 1.0])
    assert (r0[3], r1[3]) == ([[0.0, 1.0]] * 2, [[1.0, 1.0]] * 2)
    assert r0[4] == [{"r": 0}, {"r": 1}]


def _metrics(grid: list[tuple[int, int]], **config: Any) -> list[Any]:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))
    found = []
    for n, batch in grid:
        loader = accelerator.prepare(DataLoader(range(n), batch))
        together: list[int] = []
        words: list[str] = []
        assert len(loader) == sum(1 for _ in loader)
        for x in loader:
            got = accelerator.gather_for_metrics({"x": x, "pair": (x * 2, [x])})
            assert got["pair"][0].tolist() == [2 * v for v in got["x"].tolist()]
            together += got["x"].tolist()
            words += accelerator.gather_for_metrics([f"s{i}" for i in x.tolist()])
        found.append((together, words))
    return found


def test_B094_B095_B096_B098_each_sample_once_in_order() -> None:
    # Every combination is covered without ranks by the property tests of sharding.
    grid = [(n, b) for n in (1, 2, 5, 6, 7, 12, 17, 40) for b in (1, 2, 4, 5)] + [(512, 16), (22, 8)]
    for world in (2, 3):
        for found in run_ranks(_metrics, world, grid):
            for (n, _), (numbers, words) in zip(grid, found, strict=True):
                assert numbers == list(range(n))
                assert words == [f"s{i}" for i in range(n)]
    few = [(n, b) for n in range(1, 12) for b in (1, 3)]
    for config in ({"dispatch_batches": True}, {"even_batches": False}):
        usable = few if "dispatch_batches" in config else [(n, b) for n, b in few if -(-n // b) % 2 == 0]
        for found in run_ranks(_metrics, 2, usable, **config):
            assert [numbers for numbers, _ in found] == [list(range(n)) for n, _ in usable]


def test_B097_drop_last_is_not_cut_again() -> None:
    def on_rank() -> list[int]:
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(DataLoader(range(11), 5, drop_last=True))
        return [v for x in loader for v in accelerator.gather_for_metrics(x).tolist()]

    assert run_ranks(on_rank, 2) == [list(range(10))] * 2
    accelerator = Accelerator(cpu=True)
    alone = accelerator.prepare(DataLoader(range(9), 5, drop_last=True))
    assert [v for x in alone for v in accelerator.gather_for_metrics(x).tolist()] == list(range(5))


@pytest.mark.parametrize("dispatch", [True, False])
def test_B100_B087_iterables_without_length(dispatch: bool) -> None:
    def on_rank() -> list[list[int]]:
        accelerator = Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch)
        )
        found = []
        for n in range(1, 13):
            loader = accelerator.prepare(DataLoader(Stream(list(range(n))), 2))
            found.append([v for x in loader for v in accelerator.gather_for_metrics(x).tolist()])
        return found

    for found in run_ranks(on_rank, 2):
        assert found == [list(range(n)) for n in range(1, 13)]


def test_B074_dispatched_parts() -> None:
    def on_rank(n: int) -> list[list[int]]:
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(DataLoader(Stream(list(range(n))), 2))
        return [x.tolist() for x in loader]

    assert run_ranks(on_rank, 2, 5) == [[[0, 1], [4]], [[2, 3], [0]]]
    assert run_ranks(on_rank, 2, 6) == [[[0, 1], [4]], [[2, 3], [5]]]


def test_B077_B078_batches_of_anything_reach_every_rank() -> None:
    def on_rank() -> tuple[list[Any], list[Any]]:
        accelerator = Accelerator(cpu=True)
        item = {"x": torch.ones(2), "name": "s", "flag": True, "l": ["a", "b"]}
        whole = accelerator.prepare(DataLoader(Stream([item, item]), None))
        ragged = [torch.ones(k) for k in (1, 2, 3, 4, 5)]
        lists = accelerator.prepare(DataLoader(Stream(ragged), 2, collate_fn=identity))
        return (
            [{k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in b.items()} for b in whole],
            [[len(t) for t in b] for b in lists],
        )

    first, second = run_ranks(on_rank, 2)
    expected = [{"x": [1.0, 1.0], "name": "s", "flag": True, "l": ["a", "b"]}]
    assert first[0] == second[0] == expected
    assert (first[1], second[1]) == ([[1, 2], [5]], [[3, 4], [1]])


def test_B092_skipping_keeps_how_batches_are_cut() -> None:
    def cut(batch: dict[str, Any], part: slice, process_index: int, num_processes: int) -> dict[str, Any]:
        return {"x": batch["x"][process_index::num_processes], "cut": True}

    def on_rank() -> list[list[Any]]:
        config = DataLoaderConfiguration(dispatch_batches=True, split_batches=True)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        data = [{"x": torch.tensor(i)} for i in range(12)]
        loader = accelerator.prepare_data_loader(DataLoader(data, 4), slice_fn_for_dispatch=cut)
        skipped = accelerator.skip_first_batches(loader, 1)
        return [[[b["x"].tolist(), b["cut"]] for b in batches] for batches in (loader, skipped)]

    for rank, (whole, rest) in enumerate(run_ranks(on_rank, 2)):
        assert whole == [[[start + rank, start + rank + 2], True] for start in (0, 4, 8)]
        assert rest == whole[1:]


def test_a_failure_of_the_reading_rank_reaches_the_others() -> None:
    class Broken(IterableDataset[int]):
        def __iter__(self) -> Any:
            yield from range(4)
            raise OSError("disk is gone")

    def on_rank() -> str:
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(DataLoader(Broken(), 1))
        try:
            list(loader)
        except (OSError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    first, second = run_ranks(on_rank, 2)
    assert first == "OSError: disk is gone"
    assert "rank 0 failed to read the data: OSError: disk is gone" in second


def test_B091_split_between_processes() -> None:
    from nbaccel.runtime.data.split import split_evenly

    def sizes(n: int, world: int, **options: bool) -> list[list[int]]:
        return [split_evenly(list(range(n)), world, rank, **options) for rank in range(world)]

    assert list(map(len, sizes(17, 8))) == [3, 2, 2, 2, 2, 2, 2, 2]
    assert list(map(len, sizes(17, 2))) == [9, 8]
    assert sizes(1, 2) == [[0], []]
    assert sizes(0, 2) == [[], []]
    assert sizes(3, 2, apply_padding=True) == [[0, 1], [2, 2]]
    assert sizes(4, 2, apply_padding=True) == [[0, 1], [2, 3]]
    for n in range(12):
        for world in range(1, 6):
            assert [x for part in sizes(n, world) for x in part] == list(range(n))
    assert split_evenly((1, 2, 3), 2, 1) == (3,)
    assert split_evenly(torch.arange(3), 2, 1, apply_padding=True).tolist() == [2, 2]
    part = split_evenly(TensorDataset(torch.arange(3)), 2, 0)
    assert [item.tolist() for (item,) in part] == [0, 1]
    parts = split_evenly({"a": [1, 2, 3], "b": [4, 5, 6]}, 2, 0)
    assert parts == {"a": [1, 2], "b": [4, 5]}
    with pytest.raises(ValueError, match="one length"):
        split_evenly({"a": [1], "b": [1, 2]}, 2, 0)
    with pytest.raises(TypeError, match="str"):
        split_evenly("text", 2, 0)


def test_B084_epochs_are_permutations_ranks_are_disjoint_and_epochs_repeat() -> None:
    def on_rank(seedable: bool) -> dict[str, Any]:
        torch.manual_seed(5 + 100 * Accelerator(cpu=True).process_index)
        config = DataLoaderConfiguration(use_seedable_sampler=seedable)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        loader = accelerator.prepare(DataLoader(range(12), 3, shuffle=True))
        free = [[v for x in loader for v in x.tolist()] for _ in range(2)]
        chosen = []
        for epoch in (1, 2, 1):
            loader.set_epoch(epoch)
            chosen.append([v for x in loader for v in x.tolist()])
        return {"free": free, "chosen": chosen}

    for seedable in (False, True):
        first, second = run_ranks(on_rank, 2, seedable)
        again, _ = run_ranks(on_rank, 2, seedable)
        assert first == again
        for which in ("free", "chosen"):
            for one, other in zip(first[which], second[which], strict=True):
                assert sorted(one + other) == list(range(12))
        assert first["free"][0] != first["free"][1]
        assert first["chosen"][0] == first["chosen"][2] != first["chosen"][1]


def test_alone_the_order_is_that_of_plain_pytorch() -> None:
    torch.manual_seed(3)
    loader = DataLoader(range(20), 4, shuffle=True)
    plain = [[x.tolist() for x in loader] for _ in range(3)]
    torch.manual_seed(3)
    prepared = Accelerator(cpu=True).prepare(DataLoader(range(20), 4, shuffle=True))
    assert [[x.tolist() for x in prepared] for _ in range(3)] == plain


def test_B093_placement_by_object() -> None:
    accelerator = Accelerator(cpu=True)
    items = [torch.ones(1)]
    model, loader = accelerator.prepare(
        torch.nn.Linear(1, 1), DataLoader(items, None), device_placement=[True, False]
    )
    assert next(iter(loader)) is items[0]
    assert next(model.parameters()).device == accelerator.device


def test_rank_errors_carry_the_ranks_own_traceback() -> None:
    def on_rank() -> None:
        raise ValueError("of this rank")

    with pytest.raises(RankError, match="of this rank"):
        run_ranks(on_rank, 2)


def test_B102_in_debug_mode_a_rank_that_does_not_call_is_named() -> None:
    from datetime import timedelta

    from nbaccel.runtime.plugins import InitProcessGroupKwargs

    def on_rank() -> str:
        short = InitProcessGroupKwargs(timeout=timedelta(seconds=2))
        accelerator = Accelerator(cpu=True, kwargs_handlers=[short])
        accelerator.gather(torch.ones(1))
        if accelerator.is_main_process:
            with pytest.raises(TimeoutError) as caught:
                accelerator.gather(torch.ones(1))
            return str(caught.value)
        return ""

    text, _ = run_ranks(on_rank, 2, env={"NBACCEL_DEBUG_MODE": "1"})
    assert "gather: rank 1 did not call it within 2 s" in text


def test_samplers_that_draw_in_their_own_way_give_one_order() -> None:
    import random

    from torch.utils.data import DistributedSampler, Sampler, SubsetRandomSampler

    class Own(Sampler[int]):
        def __len__(self) -> int:
            return 12

        def __iter__(self) -> Any:
            return iter(random.sample(range(12), 12))

    class OwnBatches:
        epochs: list[int]

        def __init__(self) -> None:
            self.epochs = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Any:
            order = random.sample(range(12), 12)
            return iter([order[i : i + 3] for i in range(0, 12, 3)])

    def on_rank() -> list[Any]:
        accelerator = Accelerator(cpu=True)
        random.seed(accelerator.process_index)
        torch.manual_seed(accelerator.process_index)
        batches = OwnBatches()
        found: list[Any] = []
        for loader in (
            DataLoader(range(12), 3, sampler=Own()),
            DataLoader(range(12), 3, sampler=SubsetRandomSampler(range(12))),
            DataLoader(range(12), batch_sampler=batches),
        ):
            prepared = accelerator.prepare(loader)
            found.append([v for _ in range(2) for x in prepared for v in x.tolist()])
        by_hand = DistributedSampler(range(12), 2, accelerator.process_index)
        with pytest.warns(UserWarning, match="DistributedSampler"):
            prepared = accelerator.prepare(DataLoader(range(12), 3, sampler=by_hand))
        found.append([v for _ in range(2) for x in prepared for v in x.tolist()])
        return [*found, batches.epochs]

    first, second = run_ranks(on_rank, 2)
    for one, other in zip(first[:-1], second[:-1], strict=True):
        assert len(one) == len(other) == 12
        for epoch in (slice(0, 6), slice(6, 12)):
            assert sorted(one[epoch] + other[epoch]) == list(range(12))
    assert first[-1] == second[-1] == [0, 1]
