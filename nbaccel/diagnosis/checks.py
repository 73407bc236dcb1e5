"""What workers do in the self test: one function a stage, each collective, each right for any world size.

They raise AssertionError with a sentence when a result is wrong; the launcher adds rank and place.
"""

from __future__ import annotations

import os
import socket
from typing import Any

Facts = dict[str, Any]


def say_hello() -> Facts:
    """Nothing but being there."""
    from nbaccel.runtime.environment import ProcessEnvironment

    place = ProcessEnvironment.detect()
    return {
        "rank": place.rank,
        "world_size": place.world_size,
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }


def bring_up() -> Facts:
    """Device and process group."""
    from nbaccel import Accelerator

    accelerator = Accelerator()
    facts = {
        "device": str(accelerator.device),
        "precision": accelerator.mixed_precision,
        "world_size": accelerator.num_processes,
    }
    accelerator.end_training()
    return facts


def communicate() -> Facts:
    """Sum, gather of equal and of different sizes, broadcast: each against what it must be."""
    import torch

    from nbaccel import Accelerator

    accelerator = Accelerator()
    rank, world = accelerator.process_index, accelerator.num_processes
    mine = torch.full((3,), float(rank + 1), device=accelerator.device)
    total = accelerator.reduce(mine.clone(), reduction="sum")
    _same("the sum over ranks", total.tolist(), [world * (world + 1) / 2] * 3)
    gathered = accelerator.gather(mine)
    _same("what was gathered", gathered.tolist(), [float(r + 1) for r in range(world) for _ in range(3)])
    uneven = torch.full((rank + 1, 2), float(rank), device=accelerator.device)
    padded = accelerator.pad_across_processes(uneven, dim=0, pad_index=-1)
    _same("the size after padding", list(padded.shape), [world, 2])
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return {"gathered": len(gathered)}


def load_data() -> Facts:
    """A sharded loader: each sample once on some rank, with a remainder that doesn't divide."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from nbaccel import Accelerator

    accelerator = Accelerator()
    count = 4 * accelerator.num_processes + 3
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(count)), batch_size=2))
    seen: list[int] = []
    for (batch,) in loader:
        seen += accelerator.gather_for_metrics(batch).tolist()
    _same("the samples that were seen", sorted(seen), list(range(count)))
    accelerator.end_training()
    return {"samples": count}


def train() -> Facts:
    """Some steps of a small network: the loss falls, and all ranks end with the same parameters."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from nbaccel import Accelerator

    accelerator = Accelerator()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64 * accelerator.num_processes, 8, generator=generator)
    y = x @ torch.randn(8, 1, generator=generator)
    torch.manual_seed(accelerator.process_index)  # different on each rank: preparing must make them one
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(TensorDataset(x, y), batch_size=16)
    )
    losses = []
    for _ in range(6):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    if not losses[-1] < losses[0]:
        raise AssertionError(f"the loss did not fall: {losses[0]:.4f} at first, {losses[-1]:.4f} at last")
    digest = sum(parameter.detach().double().sum() for parameter in model.parameters())
    digests = accelerator.gather(
        torch.as_tensor(digest, device=accelerator.device).float().reshape(1)
    ).tolist()
    if max(digests) - min(digests) > 1e-6 * max(1.0, abs(digests[0])):
        raise AssertionError(f"the ranks' parameters differ after training: {digests}")
    accelerator.end_training()
    return {"first_loss": losses[0], "last_loss": losses[-1]}


def _same(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise AssertionError(f"{what} is wrong: {got!r} instead of {expected!r}")
