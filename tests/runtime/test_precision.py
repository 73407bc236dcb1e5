"""Mixed precision: what autocasts, what comes out, and scaling that is right under clipping and overflow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nbaccel.accelerator import Accelerator
from nbaccel.runtime.plugins import AutocastKwargs, GradScalerKwargs
from tests.runtime.ranks import run_ranks


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inside: torch.dtype | None = None

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.linear(x)
        self.inside = y.dtype
        return {"logits": y, "ids": torch.arange(3)}


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_B112_B116_autocast_is_real_and_outputs_are_float32(name: str, dtype: torch.dtype) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision=name)
    model = accelerator.prepare(Two())
    out = model(torch.ones(1, 4))
    assert model.inside is dtype
    assert (out["logits"].dtype, out["ids"].dtype) == (torch.float32, torch.int64)
    raw = Accelerator(cpu=True, mixed_precision=name, float32_outputs=False).prepare(Two())
    assert raw(torch.ones(1, 4))["logits"].dtype is dtype
    off = AutocastKwargs(enabled=False)
    plain = Accelerator(cpu=True, mixed_precision=name, kwargs_handlers=[off]).prepare(Two())
    plain(torch.ones(1, 4))
    assert plain.inside is torch.float32
    with accelerator.autocast():
        assert model.linear(torch.ones(1, 4)).dtype is dtype
    with accelerator.autocast(off):
        assert model.linear(torch.ones(1, 4)).dtype is torch.float32


def test_B111_half_precision_parameters_under_fp16_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())
    with pytest.raises(ValueError, match=r"1\.weight, 1\.bias"):
        Accelerator(cpu=True, mixed_precision="fp16").prepare(model)
    model[1].requires_grad_(False)
    Accelerator(cpu=True, mixed_precision="fp16").prepare(model)


def _count_unscales(accelerator: Accelerator) -> list[object]:
    calls: list[object] = []
    real = accelerator.scaler.unscale_

    def unscale(optimizer: torch.optim.Optimizer) -> None:
        calls.append(optimizer)
        real(optimizer)

    accelerator.scaler.unscale_ = unscale
    return calls


def test_B109_B110_one_unscale_an_optimizer_and_step() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", gradient_accumulation_steps=2)
    model = nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    calls = _count_unscales(accelerator)
    norms = []
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(3, 2)).mean())
            if accelerator.sync_gradients:
                accelerator.unscale_gradients(optimizer)
                accelerator.unscale_gradients(optimizer.optimizer)
            norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    assert calls == [optimizer.optimizer] * 2
    assert optimizer.steps_taken == 2
    # d mean / d (w1, w2, b) = (1, 1, 1), of which half comes from each micro-batch.
    assert norms == pytest.approx([3**0.5 / 2, 3**0.5] * 2, rel=1e-3)


def test_gradients_are_unscaled_exactly_and_an_overflow_skips_the_step_and_the_schedule() -> None:
    scaler = GradScalerKwargs(init_scale=1024.0, growth_interval=1)
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[scaler])
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

    def step(x: float) -> tuple[float, bool, float]:
        accelerator.backward(model(torch.full((1, 1), x)).sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return model.weight.item(), accelerator.optimizer_step_was_skipped, scheduler.get_last_lr()[0]

    assert step(1.0) == (0.5, False, 0.25)
    assert step(float("inf")) == (0.5, True, 0.25)
    assert step(1.0) == (0.25, False, 0.125)
    assert accelerator.scaler.get_scale() == 1024.0  # doubled, then halved


def test_two_optimizers_share_the_scaler_without_spoiling_each_other() -> None:
    """The first one's overflow changes the scale while the second one's gradients wait for their step."""

    def run(precision: str) -> list[float]:
        options = GradScalerKwargs(init_scale=256.0, growth_interval=1)
        accelerator = Accelerator(cpu=True, mixed_precision=precision, kwargs_handlers=[options])
        models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
        for model in models:
            nn.init.ones_(model.weight)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.125) for m in models]
        a, b, opt_a, opt_b = accelerator.prepare(*models, *optimizers)
        x = torch.ones(1, 1)
        for _ in range(3):
            accelerator.backward(b(x).sum())  # waits
            accelerator.backward(a(x).sum())
            opt_a.step()
            opt_a.zero_grad()
            accelerator.backward(a(x).sum())  # here the scale is adapted
            opt_a.step()
            opt_a.zero_grad()
            accelerator.clip_grad_norm_(b.parameters(), 100.0)
            opt_b.step()
            opt_b.zero_grad()
        return [a.weight.item(), b.weight.item()]

    assert run("fp16") == run("no") == [1 - 6 * 0.125, 1 - 3 * 0.125]


def test_an_overflow_on_one_rank_skips_the_step_on_all() -> None:
    def on_rank() -> tuple[bool, list[float]]:
        accelerator = Accelerator(cpu=True, fp16=True)
        model = nn.Linear(2, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
        before = model.module.weight.detach().clone()
        x = torch.ones(1, 2) * (float("inf") if accelerator.process_index else 1.0)
        accelerator.backward(model(x).sum())
        optimizer.step()
        return accelerator.optimizer_step_was_skipped, (model.module.weight - before).tolist()

    for skipped, moved in run_ranks(on_rank, 2):
        assert skipped
        assert moved == [[0.0, 0.0]]


def test_signature_and_instance_forward_survive() -> None:
    import inspect

    model = nn.Linear(2, 2)
    replaced = lambda data, extra=1: nn.functional.linear(data, model.weight) * extra  # noqa: E731
    model.forward = replaced
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    prepared: Any = accelerator.prepare(model)
    assert list(inspect.signature(prepared.forward).parameters) == ["data", "extra"]
    assert prepared(torch.ones(1, 2), extra=2).dtype is torch.float32
    assert accelerator.unwrap_model(prepared, keep_fp32_wrapper=False).forward is replaced
    assert list(inspect.signature(accelerator.prepare(Two()).forward).parameters) == ["x"]
