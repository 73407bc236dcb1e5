"""The default group: freed peers, a second group, models that go on after it."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn

from nbaccel.accelerator import Accelerator
from nbaccel.runtime import recovery
from nbaccel.runtime.collectives.torch_communicator import TorchCommunicator
from nbaccel.runtime.environment import ProcessEnvironment
from nbaccel.runtime.process_group import ensure_process_group, shutdown_process_group
from tests.runtime.ranks import run_ranks


def _prepared() -> tuple[Accelerator, nn.Module, torch.optim.Optimizer]:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return accelerator, *accelerator.prepare(model, optimizer)


def _step(accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    accelerator.backward(model(torch.ones(1, 2) * (accelerator.process_index + 1)).sum())
    optimizer.step()
    optimizer.zero_grad()


def test_ending_the_group_frees_a_waiting_peer_though_a_model_pins_it() -> None:
    def on_rank() -> float:
        accelerator, model, optimizer = _prepared()
        _step(accelerator, model, optimizer)
        if accelerator.process_index == 1:
            shutdown_process_group()
            assert not dist.is_initialized()
            # Alive until the peer is free: the end of this process must not be what frees it.
            time.sleep(1.5)
            return 0.0
        started = time.monotonic()
        try:
            dist.barrier()
        except RuntimeError:
            return time.monotonic() - started
        raise AssertionError("the barrier was passed though the peer had left")

    waited = run_ranks(on_rank, 2)[0]
    assert waited < 1.0


def test_models_and_optimizers_go_on_with_the_next_group() -> None:
    def on_rank() -> list[list[float]]:
        accelerator, model, optimizer = _prepared()
        scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1))
        _step(accelerator, model, optimizer)
        shutdown_process_group()
        if accelerator.process_index == 1:
            with torch.no_grad():
                model.module.weight.add_(5.0)  # as if this rank was a step ahead
                optimizer.state[model.module.weight]["momentum_buffer"].add_(3.0)
            scheduler.step()
            lost = torch.optim.SGD(model.parameters(), lr=1.0)  # on this rank only, and gone
            accelerator.prepare(lost)
            accelerator._optimizers.pop()
            del lost
        ensure_process_group(ProcessEnvironment.detect(), "cpu")
        recovery.align(TorchCommunicator(accelerator.process_index, 2, accelerator.device))
        _step(accelerator, model, optimizer)
        assert accelerator.gather(torch.tensor([accelerator.process_index])).tolist() == [0, 1]
        momentum = optimizer.state[model.module.weight]["momentum_buffer"]
        return [*model.module.weight.tolist(), momentum.tolist(), scheduler.get_last_lr()]

    first, second = run_ranks(on_rank, 2)
    assert first == second


def test_it_is_idempotent_and_safe_without_a_group() -> None:
    shutdown_process_group()

    def on_rank() -> int:
        env = ProcessEnvironment.detect()
        ensure_process_group(env, "cpu")
        group = dist.group.WORLD
        ensure_process_group(env, "cpu")
        assert dist.group.WORLD is group
        shutdown_process_group()
        shutdown_process_group()
        return env.rank

    assert run_ranks(on_rank, 2) == [0, 1]


def test_a_rank_that_ends_its_group_at_once_does_not_break_a_peer_that_still_connects() -> None:
    def on_rank() -> int:
        env = ProcessEnvironment.detect()
        for _ in range(40):
            ensure_process_group(env, "cpu")
            shutdown_process_group()
        return env.rank

    # Two ranks failed within 40 groups in three of three tries when none waited for the other.
    assert run_ranks(on_rank, 2, timeout=30) == [0, 1]


def test_a_group_of_the_users_own_is_kept_and_one_that_does_not_fit_is_refused() -> None:
    def on_rank() -> str:
        dist.init_process_group("gloo")
        group = dist.group.WORLD
        Accelerator(cpu=True)
        assert dist.group.WORLD is group
        try:
            ensure_process_group(ProcessEnvironment(0, 0, 3, 3), "cpu")
        except RuntimeError as error:
            return str(error)
        return "accepted"

    for text in run_ranks(on_rank, 2):
        assert "of 2" in text
        assert "of 3" in text
