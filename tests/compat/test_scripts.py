"""Loops as people write them for Accelerate, with the import line changed.

On two ranks with half the batch each they must arrive where one process with the whole batch does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import nbaccel
from nbaccel import Accelerator, DistributedDataParallelKwargs, PartialState
from nbaccel.local_sgd import LocalSGD
from nbaccel.state import AcceleratorState, GradientState
from nbaccel.utils import DDPCommunicationHookType, gather_object, set_seed
from nbaccel.utils.operations import find_batch_size
from tests.runtime.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("rank_server")

WORDS = 17


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    nbaccel.reset()


def adversarial(batch: int) -> dict[str, Any]:
    set_seed(0)
    options = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[options])
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.1)
    opt_c = torch.optim.SGD(critic.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(32, 2) + 1, torch.randn(32, 4)), batch_size=batch)
    generator, critic, opt_g, opt_c, loader = accelerator.prepare(generator, critic, opt_g, opt_c, loader)
    bce = nn.BCEWithLogitsLoss()
    for real, noise in loader:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        opt_c.zero_grad()
        fake = generator(noise)
        loss_c = bce(critic(real), ones) + bce(critic(fake.detach()), zeros)
        accelerator.backward(loss_c)
        opt_c.step()
        opt_g.zero_grad()
        loss_g = bce(critic(fake), ones)
        accelerator.backward(loss_g)
        opt_g.step()
    return {
        "losses": [accelerator.reduce(loss.detach(), "mean").item() for loss in (loss_c, loss_g)],
        "weights": [p.detach().sum().item() for p in accelerator.unwrap_model(generator).parameters()],
    }


class Bigrams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.out = nn.Linear(8, WORDS)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.embed(input_ids))
        return logits


def collate(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    padded = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
    return {"input_ids": padded.clamp(min=0), "labels": padded}


def language_model(batch: int) -> dict[str, Any]:
    """Tokens count alike wherever they are: weighted by the number in the window on all ranks."""
    steps = 3
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    set_seed(1)
    rows = [torch.randint(0, WORDS, (2 + i * 7 % 9,)).tolist() for i in range(44)]
    model = Bigrams()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(rows, batch_size=batch, collate_fn=collate)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = iter(loader)
    losses = []
    for first in range(0, len(loader), steps):
        window = [next(batches) for _ in range(min(steps, len(loader) - first))]
        tokens = torch.stack([(b["labels"][:, 1:] != -100).sum() for b in window]).sum()
        tokens = accelerator.gather(tokens).sum()
        total = 0.0
        for i, each in enumerate(window):
            last = i == len(window) - 1
            with contextlib.nullcontext() if last else accelerator.no_sync(model):
                logits = model(each["input_ids"])[:, :-1].reshape(-1, WORDS)
                target = each["labels"][:, 1:].reshape(-1)
                loss = nn.functional.cross_entropy(logits, target, reduction="sum") / tokens
                accelerator.backward(loss * steps * accelerator.num_processes)
                total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(torch.tensor(total), "sum").item())
    return {"losses": losses, "size": accelerator.unwrap_model(model).out.weight.square().sum().item()}


def cross_validation(batch: int) -> dict[str, Any]:
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    x = torch.randn(55, 3)
    data, folds = TensorDataset(x, x @ torch.tensor([1.0, 2.0, 3.0])), torch.arange(55) % 3
    scores, counts = [], []
    for k in range(3):
        set_seed(k)
        inside = [i for i in range(55) if folds[i] != k]
        outside = [i for i in range(55) if folds[i] == k]
        train = DataLoader(Subset(data, inside), batch_size=batch, drop_last=True)
        held_out = DataLoader(Subset(data, outside), batch_size=batch)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)
        for inputs, targets in train:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs).squeeze(-1), targets))
            optimizer.step()
        with torch.no_grad():
            seen = [accelerator.gather_for_metrics((model(a).squeeze(-1), b)) for a, b in held_out]
        guesses, truths = (torch.cat(part) for part in zip(*seen, strict=True))
        counts.append((len(truths), torch.equal(truths, data.tensors[1][outside])))
        scores.append((guesses - truths).square().mean().item())
        model, optimizer, train, held_out = accelerator.free_memory(model, optimizer, train, held_out)
    return {"scores": scores, "counts": counts}


def everything_else() -> dict[str, Any]:
    found: dict[str, Any] = {}
    gradients = GradientState()  # before there is an Accelerator, as libraries do
    hook = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=[hook])
    set_seed(0)
    x = torch.randn(24, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(x, batch_size=4)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = []
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=2, enabled=True) as local:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                local.step()
            steps.append((gradients.sync_gradients, gradients.end_of_dataloader, find_batch_size(batch)))
    found["steps"] = steps
    mine = accelerator.unwrap_model(model).weight.detach()
    found["agree"] = torch.equal(accelerator.gather(mine)[0], mine[0])
    for step in range(10):
        if accelerator.is_main_process and step == 3:
            accelerator.set_trigger()
        if accelerator.check_trigger():
            break
    found["stopped"] = step
    state = PartialState()
    with state.split_between_processes(["a", "bb", "ccc", "dddd", "eeeee"], apply_padding=True) as prompts:
        lengths = [len(prompt) for prompt in prompts]
    found["lengths"] = gather_object(lengths)[:5]
    plugin = accelerator.state.deepspeed_plugin
    found["state"] = (AcceleratorState().mixed_precision, state.num_processes, plugin)
    return found


def all_of_them(batch: int) -> dict[str, Any]:
    return {
        "adversarial": adversarial(batch),
        "language model": language_model(batch),
        "cross validation": cross_validation(batch),
    }


def close(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return abs(one - other) <= 1e-5 * max(1.0, abs(one))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(close, one, other))
    return bool(one == other)


def test_two_ranks_arrive_where_one_process_with_the_whole_batch_does() -> None:
    with torch.random.fork_rng():
        alone = all_of_them(4)
    for together in run_ranks(all_of_them, 2, 2):
        for name, numbers in alone.items():
            assert close(numbers, together[name]), (name, numbers, together[name])
    assert alone["cross validation"]["counts"] == [(19, True), (18, True), (18, True)]
    # Eleven micro-batches in windows of three: the last window has two.
    assert len(alone["language model"]["losses"]) == 4


def test_a_loop_that_looks_at_states_stops_early_and_shares_out_its_inference() -> None:
    for found in run_ranks(everything_else, 2):
        assert found["steps"] == [(False, False, 4), (True, False, 4), (True, True, 4)]
        assert found["agree"] is True
        assert found["stopped"] == 3
        assert found["lengths"] == [1, 2, 3, 4, 5]
        assert found["state"] == ("no", 2, None)
