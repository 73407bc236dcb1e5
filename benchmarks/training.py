"""Overhead of a training step and of a prepared loader, on two CPU ranks: bare PyTorch, nbaccel, Accelerate.

Run with ``python -m benchmarks.training``. All are measured in the same two processes, in turns, and the
smallest of the rounds counts. Time is that of the training thread on a processor: waiting for the other
rank isn't in it, so the ratios are larger than those of a clock on the wall, and steady on a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

ROUNDS = 25
STEPS = 100


def step_times() -> dict[str, float]:
    """Seconds for a step of an MLP 64-64-10 with a batch of 32."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import nbaccel

    torch.set_num_threads(1)
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def prepared(accelerator: Any) -> Callable[[], None]:
        model, optimizer = accelerator.prepare(*fresh())

        def step() -> None:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

        return step

    runs = {"nbaccel": prepared(nbaccel.Accelerator(cpu=True))}
    inner, plain = fresh()
    bare = DistributedDataParallel(inner)

    def bare_step() -> None:
        nn.functional.cross_entropy(bare(x), y).backward()
        plain.step()
        plain.zero_grad()

    runs["bare"] = bare_step
    incumbent = _incumbent()
    if incumbent is not None:
        runs["accelerate"] = prepared(incumbent)
    return _in_turns(
        {name: lambda step=step: [step() for _ in range(STEPS)] for name, step in runs.items()}, STEPS
    )


def loader_times() -> dict[str, float]:
    """Seconds for a batch of 32 out of 8192 samples in memory, shuffled."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    import nbaccel

    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(8192, 64), torch.randint(0, 10, (8192,)))
    loaders: dict[str, Iterable[Any]] = {
        "nbaccel": nbaccel.Accelerator(cpu=True).prepare(DataLoader(data, 32, shuffle=True)),
        "bare": DataLoader(data, 32, sampler=DistributedSampler(data)),
    }
    incumbent = _incumbent()
    if incumbent is not None:
        loaders["accelerate"] = incumbent.prepare(DataLoader(data, 32, shuffle=True))
    batches = 8192 // 32 // 2
    return _in_turns({name: lambda it=it: sum(1 for _ in it) for name, it in loaders.items()}, batches)


def _incumbent() -> Any:
    try:
        from accelerate import Accelerator
    except ImportError:
        return None
    return Accelerator(cpu=True)


def _in_turns(runs: dict[str, Callable[[], Any]], pieces: int) -> dict[str, float]:
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started = time.thread_time()
            run()
            best[name] = min(best[name], (time.thread_time() - started) / pieces)
    return best


def main() -> None:
    """Print a line for each measure, with ratios to bare PyTorch."""
    from nbaccel import notebook_launcher

    for title, function, goal in (("step", step_times, 1.03), ("loader", loader_times, 1.05)):
        times = notebook_launcher(function, (), 2, cpu=True, output="none")
        told = ", ".join(
            f"{name} {seconds * 1e6:.0f} us ({seconds / times['bare']:.3f} x)"
            for name, seconds in times.items()
        )
        print(f"{title}: {told}; goal {goal} x")


if __name__ == "__main__":
    main()
