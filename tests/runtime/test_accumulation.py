"""Accumulation and schedules, against a single process that takes the whole batch at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from nbaccel.accelerator import Accelerator
from nbaccel.runtime.plugins import GradientAccumulationPlugin
from tests.runtime.ranks import run_ranks


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.tensor([float(i + 1)]) for i in range(self.n)])


def _constant_gradient(
    batches: int,
    window: int,
    epochs: int = 1,
    *,
    sized: bool = True,
    breaks: int | None = None,
    **plugin: bool,
) -> list[float]:
    """The weight after each step, with gradient 1 a batch and learning rate 1."""
    options = GradientAccumulationPlugin(num_steps=window, **plugin)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=options)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = [torch.ones(1)] * batches if sized else Stream(batches)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1.0), DataLoader(data, 1)
    )
    weights = []
    for epoch in range(epochs):
        for index, x in enumerate(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones_like(x)).sum())
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                weights.append(accelerator.unwrap_model(model).weight.item())
            if epoch == 0 and breaks is not None and index + 1 == breaks:
                break
    return weights


def test_B120_the_last_window_is_the_mean_of_what_is_in_it() -> None:
    assert _constant_gradient(6, 4) == [-1.0, -2.0]
    assert _constant_gradient(6, 4, sized=False) == [-1.0, -2.0]
    # Broken off after two of four; the window goes on in the next epoch with the other two.
    assert _constant_gradient(6, 4, 2, breaks=2) == pytest.approx([-1.0, -2.0])


def test_B119_the_end_of_the_loader_ends_the_window_unless_switched_off() -> None:
    def synced(**plugin: bool) -> list[int]:
        options = GradientAccumulationPlugin(num_steps=2, **plugin)
        accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=options)
        loader = accelerator.prepare(DataLoader(range(3), 1))
        found, count = [], 0
        for _ in range(2):
            for _ in loader:
                count += 1
                with accelerator.accumulate():
                    if accelerator.sync_gradients:
                        found.append(count)
        return found

    assert synced() == [2, 3, 5, 6]
    assert synced(sync_with_dataloader=False) == [2, 4, 6]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 11), st.integers(1, 5), st.booleans(), st.integers(1, 2))
def test_B121_every_window_against_the_whole_batch(n: int, window: int, sized: bool, epochs: int) -> None:
    torch.manual_seed(0)
    samples = torch.randn(n, 3)
    stream = Stream(0)
    stream.__class__ = type("Own", (Stream,), {"__iter__": lambda self: iter(samples)})

    def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    reference, plain = model_and_optimizer()
    for _ in range(epochs):
        for start in range(0, n, window):
            reference(samples[start : start + window]).pow(2).mean().backward()
            plain.step()
            plain.zero_grad()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=window)
    model, optimizer = model_and_optimizer()
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(samples if sized else stream, 1)
    )
    for _ in range(epochs):
        for x in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).pow(2).mean())
                optimizer.step()
                optimizer.zero_grad()
    assert optimizer.steps_taken == epochs * -(-n // window)
    for got, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got, expected)


def test_B123_two_models_advance_once() -> None:
    samples = torch.arange(1.0, 17.0).view(16, 1)

    def on_rank(n: int) -> list[float]:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
        for model in models:
            nn.init.ones_(model.weight)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.001) for m in models]
        a, b, opt_a, opt_b, loader = accelerator.prepare(*models, *optimizers, DataLoader(samples, 4 // n))
        for x in loader:
            with accelerator.accumulate(a, b):
                for model, optimizer in ((a, opt_a), (b, opt_b)):
                    accelerator.backward(model(x).pow(2).mean())
                    optimizer.step()
                    optimizer.zero_grad()
        assert opt_a.steps_taken == opt_b.steps_taken == 2
        return [accelerator.unwrap_model(m).weight.item() for m in (a, b)]

    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for x in samples.split(8):
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in [on_rank(1), *run_ranks(on_rank, 2, 2)]:
        assert found == pytest.approx([model.weight.item()] * 2)


def test_an_evaluation_inside_an_epoch_does_not_end_its_window() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    train, evaluation = accelerator.prepare(DataLoader(range(5), 1), DataLoader(range(2), 1))
    synced = []
    for index, _ in enumerate(train):
        with accelerator.accumulate():
            pass
        for _ in evaluation:
            if index == 2:
                break
        synced.append(accelerator.sync_gradients)
        assert accelerator.gradient_state.active_dataloader is train
    assert synced == [False, True, False, True, True]
    assert accelerator.gradient_state.active_dataloader is None


def test_B125_an_optimizer_that_was_not_prepared_is_noticed() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = accelerator.prepare(model)
    with pytest.warns(UserWarning, match=r"prepare\(optimizer\)") as caught:
        for _ in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 1)).sum())
                optimizer.step()
    assert len(caught) == 1


@pytest.mark.parametrize("set_to_none", [True, False])
def test_B126_gradients_cleared_inside_a_window_are_noticed(set_to_none: bool) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=r"instead of model\.zero_grad\(\)") as caught:
        for _ in range(4):
            with accelerator.accumulate(model):
                model.zero_grad(set_to_none=set_to_none)
                accelerator.backward(model(torch.ones(1, 1)).sum())
                optimizer.step()
    assert len(caught) == 1


def test_a_correct_loop_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sized in (True, False):
            _constant_gradient(7, 4, 2, sized=sized)


def _rates(scheduler_steps_per: str, window: int = 1, batches: int = 4) -> list[float]:
    accelerator = Accelerator(
        cpu=True, scheduler_steps_per=scheduler_steps_per, gradient_accumulation_steps=window
    )
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    rates = []
    for _ in range(batches):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        rates.append(scheduler.get_last_lr()[0])
    return rates


def test_B127_one_step_of_the_schedule_an_optimizer_step() -> None:
    assert _rates("optimizer") == _rates("processes") == [1, 2, 3, 4]
    assert run_ranks(_rates, 2, "optimizer") == [[1, 2, 3, 4]] * 2
    assert run_ranks(_rates, 2, "processes") == [[2, 4, 6, 8]] * 2
    with pytest.raises(ValueError, match="optimizer, processes"):
        _rates("rank")


def test_B128_the_schedule_moves_with_real_steps_only() -> None:
    assert _rates("optimizer", window=2, batches=6) == [0, 1, 1, 2, 2, 3]


def test_the_mean_over_the_tokens_of_a_window() -> None:
    lengths = [1, 5, 2, 4, 3, 1, 7, 1]
    values = [torch.arange(1.0, n + 1) for n in lengths]

    def on_rank(n: int) -> list[float]:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4 // n)
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
        weights = []
        for start in range(0, len(values), 4):
            mine = values[start : start + 4][accelerator.process_index :: n]
            tokens = accelerator.reduce(torch.tensor(float(sum(len(v) for v in mine)))).item()
            for batch in mine:
                with accelerator.accumulate(model):
                    total = model(batch.unsqueeze(1)).pow(2).sum()
                    accelerator.backward(accelerator.window_mean(total, tokens))
                    optimizer.step()
                    optimizer.zero_grad()
            weights.append(accelerator.unwrap_model(model).weight.item())
        return weights

    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    expected = []
    for start in range(0, len(values), 4):
        model(torch.cat(values[start : start + 4]).unsqueeze(1)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(model.weight.item())
    for found in [on_rank(1), *run_ranks(on_rank, 2, 2)]:
        assert found == pytest.approx(expected)
