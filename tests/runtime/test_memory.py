"""Letting go of what was prepared."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from nbaccel.accelerator import Accelerator
from nbaccel.runtime.memory import find_executable_batch_size
from tests.runtime.ranks import run_ranks


def test_B145_the_batch_size_finder_stops_with_a_clear_error() -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        raise RuntimeError("CUDA out of memory.")

    with pytest.raises(RuntimeError, match="reached zero"):
        train()
    assert tried == [4, 3, 2, 1]

    @find_executable_batch_size(starting_batch_size=8, reduce_batch_size_fn=lambda size: size // 2)
    def fits(batch_size: int, extra: int) -> tuple[int, int]:
        if batch_size > 2:
            raise torch.OutOfMemoryError
        return batch_size, extra

    assert fits(5) == (2, 5)

    @find_executable_batch_size
    def broken(batch_size: int) -> None:
        raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"):
        broken()
    with pytest.raises(TypeError, match="batch_size"):
        broken(3)


def test_B147_a_retry_starts_without_the_model_of_the_one_before() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    models: list[weakref.ref[nn.Module]] = []

    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> int:
        accelerator.free_memory()
        assert all(ref() is None for ref in models)
        model = accelerator.prepare(nn.Linear(2, 2))
        models.append(weakref.ref(model))
        model(torch.ones(1, 2)).sum().backward()
        if batch_size > 2:
            raise RuntimeError("CUDA out of memory.")
        return batch_size

    assert train() == 2
    assert len(models) == 3


def test_B148_free_memory_lets_go_of_everything() -> None:
    def on_rank() -> int:
        accelerator = Accelerator(cpu=True, mixed_precision="fp16", gradient_accumulation_steps=2)
        refs = []
        for _ in range(3):
            model = nn.Linear(2, 2)
            model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 2)).sum())
            refs += [weakref.ref(model), weakref.ref(optimizer), weakref.ref(accelerator.unwrap_model(model))]
            model, optimizer = accelerator.free_memory(model, optimizer)
            assert model is None
            assert optimizer is None
        gc.collect()
        return sum(ref() is not None for ref in refs)

    assert on_rank() == 0
    assert run_ranks(on_rank, 2) == [0, 0]
