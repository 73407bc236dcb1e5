"""Loaders that keep the place of an iterable data set: resuming is exact and reads nothing again."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from nbaccel.accelerator import Accelerator
from nbaccel.runtime.data.prepare import prepare_data_loader
from nbaccel.runtime.plugins import DataLoaderConfiguration
from tests.runtime.ranks import run_ranks

torchdata = pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata isn't installed")

N, BATCH = 23, 2


class Walk(IterableDataset[int]):
    """Knows where it is. Loader workers each walk over every so-manyth number."""

    def __init__(self, n: int = N) -> None:
        self.n = n
        self.state = {"at": 0}
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        step, first = (info.num_workers, info.id) if info is not None else (1, 0)
        while first + self.state["at"] * step < self.n:
            value = first + self.state["at"] * step
            self.state["at"] += 1
            self.read += 1
            yield value
        self.state["at"] = 0

    def state_dict(self) -> dict[str, int]:
        return self.state  # no copy: what is saved must not change with it

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = dict(state)


class Steps:
    """An iterator that knows where it is."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.at = 0

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        if self.at == self.data.n:
            raise StopIteration
        self.at += 1
        self.data.read += 1
        return self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class ByIterator(IterableDataset[int]):
    def __init__(self, n: int = N) -> None:
        self.n = n
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        return Steps(self)


class Plain(ByIterator):
    """Has no state at all."""

    def __iter__(self) -> Iterator[int]:
        for value in range(self.n):
            self.read += 1
            yield value


def _run(
    kind: str, place: str, *, stop: int | None = None, resume: bool = False, **options: Any
) -> tuple[list[list[int]], list[int], int]:
    """Two epochs; the batches seen, the samples of metrics, and how many samples were read."""
    dispatch, workers, own = (options.get(k, 0) for k in ("dispatch", "workers", "own"))
    config = DataLoaderConfiguration(dispatch_batches=bool(dispatch), use_stateful_dataloader=not own)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    data: Any = {"walk": Walk, "iterator": ByIterator, "plain": Plain}[kind]()
    loader: Any
    if own:
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader = StatefulDataLoader(data, BATCH, num_workers=workers)
    else:
        loader = DataLoader(data, BATCH, num_workers=workers)
    prepared = accelerator.prepare(loader)
    steps = 0
    if resume:
        accelerator.load_state(place)
        steps = prepared.iteration * 1000
    seen: list[list[int]] = []
    together: list[int] = []
    for _ in range(prepared.iteration, 2):
        for batch in prepared:
            seen.append(batch.tolist())
            together += accelerator.gather_for_metrics(batch).tolist()
            steps += 1
            if steps == stop:
                accelerator.save_state(place)
                return seen, together, data.read
    return seen, together, data.read


CASES: list[tuple[str, dict[str, int]]] = [
    ("walk", {}),
    ("walk", {"dispatch": 1}),
    ("walk", {"own": 1}),
    ("iterator", {}),
    ("iterator", {"dispatch": 1}),
    ("plain", {}),
]


def _all_cases(folder: str, stop: int | None, resume: bool) -> list[tuple[list[list[int]], list[int], int]]:
    return [
        _run(kind, f"{folder}/{index}", stop=stop, resume=resume, **options)
        for index, (kind, options) in enumerate(CASES)
    ]


@torchdata
@pytest.mark.parametrize("world", [1, 2])
def test_B132_an_interrupted_pass_goes_on_batch_for_batch(tmp_path: Path, world: int) -> None:
    whole = run_ranks(_all_cases, world, str(tmp_path), None, False)
    a_pass = len(whole[0][0][0]) // 2
    # In the first epoch, at its very end, and in the second.
    for stop in (2, a_pass, a_pass + 3):
        before = run_ranks(_all_cases, world, str(tmp_path), stop, False)
        after = run_ranks(_all_cases, world, str(tmp_path), None, True)
        for rank in range(world):
            for first, rest, both in zip(before[rank], after[rank], whole[rank], strict=True):
                assert first[0] + rest[0] == both[0]
                assert first[1] + rest[1] == both[1] == 2 * list(range(N))
    left = N - 3 * BATCH * world
    for (kind, options), (_, _, read) in zip(CASES, after[0], strict=True):
        # The first group of a shard, or the first batch of a dispatcher, is read again for filling.
        again = 0 if world == 1 else BATCH * (1 if options.get("dispatch") else world)
        assert read == N + again if kind == "plain" else read <= left + again


@torchdata
@pytest.mark.parametrize("dispatch", [0, 1])
def test_states_of_loader_workers_are_kept_too(tmp_path: Path, dispatch: int) -> None:
    place = str(tmp_path / "c")
    options = {"dispatch": dispatch, "workers": 2}
    whole = run_ranks(_run, 2, "walk", place, **options)
    before = run_ranks(_run, 2, "walk", place, stop=3, **options)
    after = run_ranks(_run, 2, "walk", place, resume=True, **options)
    for rank in range(2):
        assert before[rank][0] + after[rank][0] == whole[rank][0]
        assert sorted(whole[rank][1]) == sorted(2 * list(range(N)))


@torchdata
def test_a_checkpoint_of_another_number_of_ranks_is_read_up_to_there(tmp_path: Path) -> None:
    place = str(tmp_path / "c")
    run_ranks(_run, 2, "walk", place, stop=2)
    ((_, together, read),) = run_ranks(_run, 1, "walk", place, resume=True)
    assert together == [*range(8, N), *range(N)]
    assert read == 2 * N


@torchdata
def test_a_loader_of_torchdata_over_indices_resumes_by_position(tmp_path: Path) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def on_rank(resume: bool) -> list[list[int]]:
        torch.manual_seed(99 if resume else 5)
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(StatefulDataLoader(range(12), 2, shuffle=True))
        if resume:
            accelerator.load_state(str(tmp_path / "c"))
        seen = []
        for x in loader:
            seen.append(x.tolist())
            if not resume and len(seen) == 1:
                accelerator.save_state(str(tmp_path / "c"))
        return seen

    whole, rest = run_ranks(on_rank, 2, False), run_ranks(on_rank, 2, True)
    for rank in range(2):
        assert rest[rank] == whole[rank][1:]
    assert sorted(v for seen in whole for batch in seen for v in batch) == list(range(12))


def test_without_torchdata_a_state_that_is_not_kept_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbaccel.runtime.data.stateful.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"Walk has a state of its own.*pip install torchdata"):
        prepared = prepare_data_loader(DataLoader(Walk(), BATCH), use_stateful_dataloader=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare_data_loader(DataLoader(Plain(), BATCH), use_stateful_dataloader=True)
        prepare_data_loader(DataLoader(range(6), BATCH), use_stateful_dataloader=True)
    # It is resumed all the same.
    steps = iter(prepared)
    first = [next(steps).tolist() for _ in range(3)]
    state = prepared.state_dict()
    again = prepare_data_loader(DataLoader(Plain(), BATCH), use_stateful_dataloader=True)
    again.load_state_dict(state)
    assert first + [x.tolist() for x in again] == [x.tolist() for x in DataLoader(range(N), BATCH)]
