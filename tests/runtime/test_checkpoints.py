"""Saving a run and going on with it."""

from __future__ import annotations

import json
import os
import random
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nbaccel.accelerator import Accelerator
from nbaccel.runtime.checkpoints import folder
from nbaccel.runtime.checkpoints.weights import load_sharded, parse_size, save_sharded
from nbaccel.runtime.plugins import DataLoaderConfiguration, InitProcessGroupKwargs, ProjectConfiguration
from tests.runtime.ranks import run_ranks


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


class Counter:
    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def _run(
    place: str, stop_after: int | None, resume: bool, *, mode: str = "plain", split: bool = False
) -> tuple[list[list[float]], list[float]]:
    """Three epochs; returns the batches seen from the start or the resumption on, and the last weights."""
    torch.manual_seed(99 if resume else 7)
    config = DataLoaderConfiguration(
        use_seedable_sampler=mode == "seedable",
        use_stateful_dataloader=mode == "stateful",
        split_batches=split,
    )
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = TensorDataset(torch.arange(24.0).unsqueeze(1))
    own = torch.Generator().manual_seed(23) if mode == "generator" else None
    loader = DataLoader(data, 4 if split else 2, shuffle=True, generator=own)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    steps, first, skip = 0, 0, 0
    if resume:
        torch.rand(17)
        accelerator.load_state(place)
        first, skip = divmod(accelerator.step, len(loader))
    seen = []
    for _ in range(first, 3):
        batches = loader
        if skip and mode != "stateful":
            batches = accelerator.skip_first_batches(loader, skip)
        skip = 0
        for (x,) in batches:
            seen.append(x.flatten().tolist())
            loss = model(x / 24).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            steps += 1
            if steps == stop_after:
                accelerator.save_state(place)
                return seen, []
    weights = torch.cat([p.detach().flatten() for p in accelerator.unwrap_model(model).parameters()])
    return seen, weights.tolist()


@pytest.mark.parametrize("mode", ["plain", "seedable", "stateful", "generator"])
@pytest.mark.parametrize("stop_after", [3, 6, 8, 12])
def test_an_interrupted_run_goes_on_batch_for_batch(tmp_path: Path, mode: str, stop_after: int) -> None:
    place = str(tmp_path / "run")
    whole = run_ranks(_run, 2, place, None, False, mode=mode)
    before = run_ranks(_run, 2, place, stop_after, False, mode=mode)
    after = run_ranks(_run, 2, place, None, True, mode=mode)
    for rank in range(2):
        assert before[rank][0] + after[rank][0] == whole[rank][0]
        assert after[rank][1] == whole[rank][1]


def test_it_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    place = str(tmp_path / "run")
    run_ranks(_run, 2, place, 2, False, mode="stateful", split=True)
    ((whole, _),) = run_ranks(_run, 1, place, None, False, mode="stateful", split=True)
    ((after, _),) = run_ranks(_run, 1, place, None, True, mode="stateful", split=True)
    assert sorted(v for batch in after[: 6 - 2] for v in batch) == sorted(
        set(range(24)) - {v for batch in whole[:2] for v in batch}
    )


def test_B141_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Tied())
    before = model.a.weight.detach().clone()
    accelerator.save_state(str(tmp_path / "c"))
    with torch.no_grad():
        model.a.weight.zero_()
    accelerator.load_state(str(tmp_path / "c"))
    assert torch.equal(model.a.weight, before)
    assert model.b.weight is model.a.weight
    accelerator.save_model(model, str(tmp_path / "m"), max_shard_size="40B")
    state = load_sharded(tmp_path / "m")
    assert set(state) == set(model.state_dict())
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 1
    accelerator.save_model(model, str(tmp_path / "m"))
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["model.safetensors"]


def test_shards_and_sizes(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    state = {
        "whole": base,
        "view": base[2:4],
        "t": base.view(2, 3).t(),
        "none": torch.empty(0),
        "h": base.half(),
    }
    save_sharded(state, tmp_path, max_shard_size=20)
    for name, tensor in load_sharded(tmp_path).items():
        assert torch.equal(tensor, state[name])
    assert [parse_size(s) for s in (5, "7", "2KB", "1.5GB", "3MiB")] == [5, 7, 2000, 1_500_000_000, 3 * 2**20]
    with pytest.raises(ValueError, match="lots"):
        parse_size("lots")


def test_B139_random_states_are_plain_data(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)

    def draw() -> list[Any]:
        return [
            random.random(),
            random.gauss(0, 1),
            np.random.rand(),
            np.random.randn(),
            torch.rand(1).item(),
        ]

    random.gauss(0, 1), np.random.randn()  # half of a pair is cached
    accelerator.save_state(str(tmp_path / "c"))
    expected = draw()
    accelerator.load_state(str(tmp_path / "c"))
    assert draw() == expected
    for path in (tmp_path / "c").glob("*.pt"):
        torch.load(path, weights_only=True)


def test_B143_B144_objects_prepared_one_by_one_are_saved(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        accelerator.load_state(str(tmp_path / "none"))
    model = accelerator.prepare_model(nn.Linear(1, 1))
    optimizer = accelerator.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9))
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    with pytest.raises(ValueError, match="load_state_dict"):
        accelerator.register_for_checkpointing(object())
    for value in range(2):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()
        counter.value = value
    weight = model.weight.detach().clone()
    accelerator.save_state(str(tmp_path / "c"))
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    counter.value = 5
    accelerator.load_state(str(tmp_path / "c"))
    assert torch.equal(model.weight, weight)
    assert (counter.value, accelerator.step) == (1, 2)
    fresh = Accelerator(cpu=True)
    with pytest.raises(ValueError, match="models: 1 saved, 0 prepared"):
        fresh.load_state(str(tmp_path / "c"))


def test_what_a_safe_loader_refuses_is_refused_when_saving(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.register_for_checkpointing(Counter(Counter()))
    with pytest.raises(ValueError, match=r"Counter \(registered object 0\)"):
        accelerator.save_state(str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


def _automatic(root: Path, limit: int | None) -> Accelerator:
    config = ProjectConfiguration(str(root), automatic_checkpoint_naming=True, total_limit=limit)
    return Accelerator(cpu=True, project_config=config)


def test_B133_B136_old_checkpoints_go_in_numeric_order(tmp_path: Path) -> None:
    accelerator = _automatic(tmp_path, 3)
    for _ in range(12):
        accelerator.save_state()
    names = [path.name for path in folder.numbered(tmp_path / "checkpoints")]
    assert names == ["checkpoint_9", "checkpoint_10", "checkpoint_11"]
    accelerator.load_state(str(tmp_path / "checkpoints" / "checkpoint_9"))
    accelerator.keep_checkpoint(str(tmp_path / "checkpoints" / "checkpoint_10"))
    assert accelerator.save_iteration == 10
    accelerator.project_configuration.iteration = 12
    for _ in range(4):
        accelerator.save_state()
    names = [path.name for path in folder.numbered(tmp_path / "checkpoints")]
    assert names == ["checkpoint_9", "checkpoint_10", "checkpoint_15"]
    accelerator.project_configuration.iteration = 15
    with pytest.raises(ValueError, match="exists already"):
        accelerator.save_state()


def test_B134_only_one_rank_removes(tmp_path: Path) -> None:
    def on_rank(root: Path) -> None:
        accelerator = _automatic(root, 2)
        accelerator.prepare(nn.Linear(2, 2))
        for _ in range(5):
            accelerator.save_state()
        accelerator.load_state()

    run_ranks(on_rank, 3, tmp_path)
    places = folder.numbered(tmp_path / "checkpoints")
    assert [place.name for place in places] == ["checkpoint_3", "checkpoint_4"]
    for place in places:
        folder.open_complete(place)
        assert {f"random_states_{rank}.pt" for rank in range(3)} <= {p.name for p in place.iterdir()}


def test_B138_save_state_on_one_rank_only_is_an_error_that_says_who_is_missing(tmp_path: Path) -> None:
    def on_rank(place: str) -> str:
        short = InitProcessGroupKwargs(timeout=timedelta(seconds=2))
        accelerator = Accelerator(cpu=True, kwargs_handlers=[short])
        if accelerator.is_main_process:
            try:
                accelerator.save_state(place)
            except TimeoutError as error:
                return str(error)
        return ""

    text, _ = run_ranks(on_rank, 2, str(tmp_path / "c"))
    assert "save_state: rank 1 did not call it within 2 s" in text


def test_a_save_that_is_killed_leaves_the_one_before(tmp_path: Path) -> None:
    place = tmp_path / "c"
    accelerator = Accelerator(cpu=True)
    counter = Counter(1)
    accelerator.register_for_checkpointing(counter)
    accelerator.save_state(str(place))
    (place / "notes.txt").write_text("mine")

    def killed(at: str) -> None:
        # In a process of its own, which ends like one that is killed.
        inner = Accelerator(cpu=True)
        inner.register_for_checkpointing(Counter(2))
        real = getattr(Path, at)

        def kill(self: Path, *args: Any, **kwargs: Any) -> Any:
            if "writing" in str(self) or self.name == "c":
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *args, **kwargs)

        setattr(Path, at, kill)
        inner.save_state(str(place))

    for at in ("write_bytes", "rename", "open"):
        with pytest.raises(AssertionError, match="exit code -9"):
            run_ranks(killed, 1, at)
        counter.value = 0
        accelerator.load_state(str(place))
        assert counter.value == 1
    counter.value = 3
    accelerator.save_state(str(place))
    assert (place / "notes.txt").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c"]


def test_missing_pieces_are_named(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(1, 1))
    accelerator.save_state(str(tmp_path / "c"))
    (tmp_path / "c" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks model\.safetensors"):
        accelerator.load_state(str(tmp_path / "c"))
    (tmp_path / "foreign").mkdir()
    with pytest.raises(FileNotFoundError, match="isn't a complete checkpoint"):
        accelerator.load_state(str(tmp_path / "foreign"))


def test_hooks_may_save_and_load_in_their_own_way(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(1, 1))
    calls: list[str] = []

    def saving(models: list[nn.Module], weights: list[Any], output_dir: str) -> None:
        calls.append("save")
        torch.save(weights.pop(), Path(output_dir, "own.pt"))

    def loading(models: list[nn.Module], input_dir: str) -> None:
        calls.append("load")
        models.pop().load_state_dict(torch.load(Path(input_dir, "own.pt"), weights_only=True))

    handles = [
        accelerator.register_save_state_pre_hook(saving),
        accelerator.register_load_state_pre_hook(loading),
    ]
    weight = model.weight.detach().clone()
    accelerator.save_state(str(tmp_path / "c"))
    assert {"own.pt"} <= set(json.loads((tmp_path / "c" / folder.MANIFEST).read_text())["files"])
    assert not (tmp_path / "c" / "model.safetensors").exists()
    with torch.no_grad():
        model.weight.zero_()
    accelerator.load_state(str(tmp_path / "c"))
    assert torch.equal(model.weight, weight)
    for handle in handles:
        handle.remove()
    accelerator.save_state(str(tmp_path / "c"))
    assert calls == ["save", "load"]
