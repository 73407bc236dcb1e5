"""One training loop, written as a user writes it, that runs on XLA replicas and on gloo ranks alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

SAMPLES, FEATURES = 52, 6


def make_model(batch_norm: bool = False) -> nn.Module:
    """The same weights each time."""
    # Without a bias, whose gradient would be noise that Adam blows up to full steps.
    middle = [nn.BatchNorm1d(16)] if batch_norm else []
    model = nn.Sequential(nn.Linear(FEATURES, 16, bias=not batch_norm), *middle, nn.ReLU(), nn.Linear(16, 3))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def make_data(samples: int = SAMPLES) -> torch.utils.data.TensorDataset:
    """Three classes that can be told apart."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(samples, FEATURES, generator=generator)
    return torch.utils.data.TensorDataset(x, (x[:, :3] + x[:, 3:]).argmax(1))


def train(
    *,
    epochs: int = 2,
    batch_size: int = 4,
    samples: int = SAMPLES,
    accumulate: int = 1,
    clip: float | None = None,
    schedule: bool = False,
    batch_norm: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Train and evaluate.

    Returns:
        What the ranks are compared by: ``weights``, ``losses`` of each epoch's last batch on all ranks,
        ``accuracy``, ``predictions`` (how many), ``rates``, ``norms``, ``steps``, ``buffers``.
    """
    from nbaccel import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=accumulate, **options)
    data = make_data(samples)
    order = torch.Generator().manual_seed(5)
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True, generator=order)
    evaluation = torch.utils.data.DataLoader(data, batch_size=8)
    model = make_model(batch_norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7) if schedule else None
    # The optimizer was made before the model moved, as in most scripts.
    model, optimizer, loader, evaluation = accelerator.prepare(model, optimizer, loader, evaluation)
    if scheduler is not None:
        scheduler = accelerator.prepare(scheduler)
    losses, norms, rates = [], [], []
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if clip is not None:
                    norm = accelerator.clip_grad_norm_(model.parameters(), clip)
                    if accelerator.sync_gradients and accelerator.is_main_process:
                        norms.append(float(norm))
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).tolist())
        rates.append(optimizer.param_groups[0]["lr"])
    model.eval()
    right: list[bool] = []
    for x, y in evaluation:
        with torch.no_grad():
            hits = model(x).argmax(1) == y
        right += accelerator.gather_for_metrics(hits).tolist()
    inner = accelerator.unwrap_model(model)
    return {
        "weights": torch.cat([p.detach().cpu().flatten() for p in inner.parameters()]),
        "buffers": [b.detach().cpu() for b in inner.buffers()],
        "losses": losses,
        "norms": norms,
        "rates": rates,
        "accuracy": sum(right) / len(right),
        "predictions": len(right),
        "steps": accelerator.step,
    }


def sums_of(accelerator: Any, lengths: Iterable[int]) -> list[torch.Tensor]:
    """A loop over batches of these lengths, for looking at what it has compiled."""
    model = accelerator.prepare(nn.Linear(1, 1))
    data = [torch.ones(length) for length in lengths]
    loader = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=None))
    sums = []
    for x in loader:
        total = model(x[:, None]).sum()
        sums.append(total.detach())
    return sums
