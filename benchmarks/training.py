"""Overhead of a training step and of a prepared loader, on two CPU ranks: bare PyTorch, nbaccel, Accelerate.

All are measured in the same two processes, in turns, and the
smallest of the rounds counts. Time is that of the training thread on a processor: waiting for the other
rank isn't in it, so the ratios are larger than those of a clock on the wall, and steady on a busy machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.measures import ACCELERATE, BARE, OURS, Door, Goal, Readings, Scenario, number_from
from tests.kernel import ROOT, Kernel

ROUNDS = 25
STEPS = 100
LOGGED_STEPS = 4000
PANEL_ROUNDS = 4


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

    runs = {OURS.package: prepared(nbaccel.Accelerator(cpu=True))}
    inner, plain = fresh()
    bare = DistributedDataParallel(inner)

    def bare_step() -> None:
        nn.functional.cross_entropy(bare(x), y).backward()
        plain.step()
        plain.zero_grad()

    runs[BARE] = bare_step
    incumbent = _incumbent()
    if incumbent is not None:
        runs[ACCELERATE.package] = prepared(incumbent)
    return _in_turns(
        {name: lambda step=step: [step() for _ in range(STEPS)] for name, step in runs.items()}, STEPS
    )


def logged_step_time() -> dict[str, float]:
    """Processor time of the process for a step of the same MLP that logs two values, over some seconds."""
    import torch
    from torch import nn

    import nbaccel

    torch.set_num_threads(1)
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    accelerator = nbaccel.Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))

    def steps(count: int) -> None:
        for step in range(count):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss.item(), "lr": 0.01}, step=step)

    steps(STEPS)
    started = time.process_time()
    steps(LOGGED_STEPS)
    return {"seconds": (time.process_time() - started) / LOGGED_STEPS}


def loader_times() -> dict[str, float]:
    """Seconds for a batch of 32 out of 8192 samples in memory, shuffled."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    import nbaccel

    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(8192, 64), torch.randint(0, 10, (8192,)))
    loaders: dict[str, Iterable[Any]] = {
        OURS.package: nbaccel.Accelerator(cpu=True).prepare(DataLoader(data, 32, shuffle=True)),
        BARE: DataLoader(data, 32, sampler=DistributedSampler(data)),
    }
    incumbent = _incumbent()
    if incumbent is not None:
        loaders[ACCELERATE.package] = incumbent.prepare(DataLoader(data, 32, shuffle=True))
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
    for turn in range(ROUNDS):
        for name in sorted(runs, reverse=turn % 2 == 1):
            started = time.thread_time()
            runs[name]()
            best[name] = min(best[name], (time.thread_time() - started) / pieces)
    return best


def overhead(kernel: Kernel, door: Door) -> Readings:
    """Both measures of all three, taken by rank 0 of a launch."""
    kernel.run(
        f"import json, sys\nsys.path.insert(0, {str(ROOT)!r})\n{door.opening}\n"
        "from benchmarks.training import loader_times, step_times\n"
        "def told(function):\n"
        "    times = notebook_launcher(function, num_processes=2, output='none')\n"
        "    return 'times:' + json.dumps(times)"
    )
    readings = {}
    for measure, function in ((STEP, step_times), (LOADER, loader_times)):
        result = kernel.run(f"print(told({function.__name__}))", timeout=300)
        readings[measure] = json.loads(result.stdout.rsplit("times:", 1)[1])
    return readings


STEP, LOADER = "training step, on the processor", "batch of a loader, on the processor"


def panel(kernel: Kernel, door: Door) -> Readings:
    """A step that logs, with the live panel and without, in turns; the smallest of the rounds counts."""
    kernel.run(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{door.opening}\n"
        "from benchmarks.training import logged_step_time\n"
        "def taken(progress):\n"
        "    return notebook_launcher(\n"
        "        logged_step_time, num_processes=2, cpu=True, output='none', progress=progress\n"
        "    )['seconds']"
    )
    best = {door.package: float("inf"), NO_PANEL: float("inf")}
    for turn in range(PANEL_ROUNDS):
        for name in sorted(best, reverse=turn % 2 == 1):
            best[name] = min(best[name], number_from(kernel, f"taken({name != NO_PANEL})"))
    return {PANEL: best}


PANEL, NO_PANEL = "step that logs, with the live panel", "without it"

SCENARIOS = {
    "panel": Scenario(panel, {PANEL: Goal(against=NO_PANEL)}, repeats=3, doors=(OURS,)),
    "training": Scenario(
        overhead,
        {STEP: Goal(ratio=1.03, against=BARE), LOADER: Goal(ratio=1.05, against=BARE)},
        repeats=3,
        doors=(OURS,),
    ),
}
