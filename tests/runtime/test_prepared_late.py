"""Models and optimizers that were trained before they are prepared."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from nbaccel.accelerator import Accelerator
from tests.runtime.ranks import run_ranks


def _train_then_prepare() -> tuple[float, list[float]]:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    rank = accelerator.process_index

    def step(scale: float) -> None:
        optimizer.zero_grad()
        model(torch.full((1, 2), scale)).sum().backward()
        optimizer.step()

    for _ in range(1 + rank):  # each on its own data, and not equally often
        step(1.0 + rank)
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        accelerator.backward(model(torch.full((1, 2), 1.0 + rank)).sum())
        optimizer.step()
    state = optimizer.state_dict()["state"][0]
    return state["step"].item(), [p for one in model.parameters() for p in one.flatten().tolist()]


def test_an_optimizer_that_has_stepped_gets_the_state_of_rank_0() -> None:
    first, second = run_ranks(_train_then_prepare, 2)
    assert first == second
    assert first[0] == 1 + 3


def test_an_optimizer_of_another_model_is_told_of_in_its_first_step() -> None:
    accelerator = Accelerator(cpu=True)
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer, right = torch.optim.SGD(other.parameters()), torch.optim.SGD(model.parameters())
    model, optimizer, right = accelerator.prepare(model, optimizer, right)
    accelerator.backward(model(torch.ones(1, 1)).sum())
    with pytest.warns(UserWarning, match="none of its 2 parameters has a gradient"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right.step()
        optimizer.step()  # once is enough
