"""What ranks are told when something goes wrong between them: names, options, time limits."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nbaccel import Accelerator
from nbaccel.runtime.plugins import DistributedDataParallelKwargs, InitProcessGroupKwargs
from tests.runtime.ranks import run_ranks


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(1, 1)
        self.unused = nn.Linear(1, 1)
        self.cfg = {"width": 1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.used(x)
        return out

    def describe(self) -> str:
        return f"width {self.cfg['width']}"


def _two_steps(*handlers: Any) -> str:
    accelerator = Accelerator(cpu=True, kwargs_handlers=list(handlers))
    model = accelerator.prepare(Configured())
    try:
        for _ in range(2):
            accelerator.backward(model(torch.ones(2, 1)).sum())
    except RuntimeError as error:
        return str(error)
    return "fine"


def test_B059_an_unused_parameter_is_named_with_the_option_that_helps() -> None:
    for told in run_ranks(_two_steps, 2):
        assert "unused.weight" in told
        assert "find_unused_parameters" in told


def test_B059_with_the_option_the_steps_pass() -> None:
    def on_rank() -> str:
        return _two_steps(DistributedDataParallelKwargs(find_unused_parameters=True))

    assert run_ranks(on_rank, 2) == ["fine", "fine"]


@pytest.mark.parametrize(("limit_s", "outcome"), [(2, "late"), (60, "passed")])
def test_B061_the_timeout_that_was_given_is_in_force(limit_s: int, outcome: str) -> None:
    def on_rank() -> str:
        accelerator = Accelerator(
            cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=limit_s))]
        )
        if not accelerator.is_main_process:
            time.sleep(5)
            if limit_s < 5:
                return "slept"
        start = time.monotonic()
        try:
            accelerator.wait_for_everyone()
        except (RuntimeError, TimeoutError):
            assert limit_s <= time.monotonic() - start + 0.5
            return "late"
        return "passed"

    assert run_ranks(on_rank, 2)[0] == outcome


@pytest.mark.parametrize("where", ["wait_for_everyone", "main_process_first"])
def test_B062_who_is_missing_after_the_timeout_is_named(where: str, tmp_path: Path) -> None:
    told = tmp_path / "told"

    def on_rank() -> str:
        accelerator = Accelerator(cpu=True)
        late = 1 if where == "wait_for_everyone" else 0
        if accelerator.process_index == late:
            while not told.exists():
                time.sleep(0.01)
            accelerator.wait_for_everyone(timeout=30)  # the other has called it: this one may pass
            text = "passed"
        else:
            with pytest.raises(TimeoutError) as caught:
                if where == "wait_for_everyone":
                    accelerator.wait_for_everyone(timeout=0.5)
                else:
                    with accelerator.main_process_first(timeout=timedelta(seconds=0.5)):
                        raise AssertionError("rank 0 wasn't there")
            text = str(caught.value)
            told.touch()
        accelerator.wait_for_everyone(timeout=30)
        accelerator.wait_for_everyone()
        return text

    texts = run_ranks(on_rank, 2)
    late = texts.index("passed")
    assert texts[1 - late].startswith(f"wait_for_everyone: rank {late} did not call it within 0.5 s.")
    assert late == (1 if where == "wait_for_everyone" else 0)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "5", timedelta(0)])
def test_a_timeout_that_is_none_is_refused_on_any_number_of_ranks(timeout: Any) -> None:
    with pytest.raises(ValueError, match=r"timeout=.*: pass a positive number of seconds, or None"):
        Accelerator(cpu=True).wait_for_everyone(timeout=timeout)


@pytest.mark.parametrize("world_size", [1, 2])
def test_B063_attributes_of_a_prepared_model_are_the_same_on_any_number_of_ranks(world_size: int) -> None:
    def on_rank() -> Any:
        model = Accelerator(cpu=True).prepare(Configured())
        with pytest.raises(AttributeError):
            model.no_such_attribute  # noqa: B018
        try:
            described = model.describe()
        except AttributeError as error:
            described = str(error)
        return model.cfg, described

    for cfg, described in run_ranks(on_rank, world_size):
        assert cfg == {"width": 1}
        assert (
            "width 1" if world_size == 1 else "accelerator.unwrap_model(model).describe(...)"
        ) in described
