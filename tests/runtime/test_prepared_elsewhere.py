"""What was prepared in a notebook and is used by a launched function becomes part of the worker's world."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import nbaccel
from nbaccel.accelerator import Accelerator
from nbaccel.launch.worker.standing_functions import unwrapped
from nbaccel.runtime.plugins import DataLoaderConfiguration
from nbaccel.state import AcceleratorState, GradientState, PartialState
from tests.runtime.ranks import run_ranks


class Counting(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught if "no prepared model" in str(w.message)]


def test_loaders_states_and_windows_are_made_anew_and_a_bare_model_is_told_of() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    listed, counting = DataLoader(range(10), batch_size=2), DataLoader(Counting(), batch_size=2)
    model, optimizer, schedule, listed, counting = accelerator.prepare(
        model, optimizer, schedule, listed, counting
    )
    state, whole, gradients = PartialState(), AcceleratorState(), GradientState()

    def on_rank() -> dict[str, Any]:
        found: dict[str, Any] = {
            "samples": [x.tolist() for x in listed],
            "counted": sum(len(accelerator.gather_for_metrics(x)) for x in counting),
            "places": [
                (each.process_index, each.num_processes) for each in (state, whole, accelerator.state)
            ],
            "shared": gradients is accelerator.gradient_state is optimizer.gradient_state is GradientState(),
        }
        moved = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                before = model.weight.item()
                with accelerator.accumulate(model):
                    accelerator.backward(model(torch.ones(1, 1)).sum())
                    optimizer.step()
                    optimizer.zero_grad()
                moved.append(model.weight.item() != before)
        return found | {"told": told(caught), "moved": moved}

    r0, r1 = run_ranks(on_rank, 2)
    assert (r0["samples"][0], r1["samples"][0]) == ([0, 1], [2, 3])
    assert len(r0["samples"]) == len(r1["samples"]) == 3
    assert r0["counted"] == r1["counted"] == 8
    assert (r0["places"], r1["places"]) == ([(0, 2)] * 3, [(1, 2)] * 3)
    assert r0["shared"]
    assert r1["shared"]
    [line] = r0["told"]
    assert "on 2 processes" in line
    assert "accelerator.prepare(model)" in line
    # The window is the Accelerator's also for an optimizer that came from elsewhere.
    assert r0["moved"] == [False, True, False, True]


def test_nothing_is_said_where_a_model_is_kept_in_step() -> None:
    def on_rank() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            accelerator = Accelerator(cpu=True)
            by_hand = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
            accelerator.backward(by_hand(torch.ones(1, 1)).sum())
            del by_hand
            prepared = Accelerator(cpu=True)
            model = prepared.prepare(nn.Linear(1, 1))
            prepared.backward(model(torch.ones(1, 1)).sum())
        return told(caught)

    assert run_ranks(on_rank, 2) == [[], []]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Accelerator(cpu=True).backward(nn.Linear(1, 1)(torch.ones(1, 1)).sum())
    assert told(caught) == []


def test_a_prepared_loader_can_be_copied_and_is_brought_home_plain() -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    plain = DataLoader(range(6), batch_size=2, shuffle=True)
    loader = accelerator.prepare(plain)
    list(loader)
    shallow, deep = copy.copy(loader), copy.deepcopy(loader)
    assert shallow.source is plain
    assert shallow.position is loader.position
    assert deep.source is not plain
    assert deep.iteration == 1
    assert sorted(x for batch in deep for x in batch.tolist()) == list(range(6))
    assert unwrapped(loader) is plain


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    yield
    nbaccel.reset()
