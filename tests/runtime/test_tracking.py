"""Trackers: on rank 0 only, whatever the configuration holds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nbaccel.accelerator import Accelerator
from nbaccel.runtime.tracking.base import GeneralTracker, flatten_config
from tests.runtime.ranks import run_ranks


class Recorder(GeneralTracker):
    name = "recorder"

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def _note(self, *what: Any) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps([os.getpid(), *what]) + "\n")

    def start(self) -> None:
        self._note("start")

    @property
    def tracker(self) -> Any:
        return self.path

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._note("config", values)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self._note("log", values, step, kwargs)

    def finish(self) -> None:
        self._note("finish")


def test_B185_trackers_live_on_rank_0_only(tmp_path: Path) -> None:
    def on_rank(path: str) -> tuple[bool, list[str]]:
        accelerator = Accelerator(cpu=True, log_with=Recorder(path))
        assert [tracker.name for tracker in accelerator.log_with] == ["recorder"]
        assert accelerator.trackers == []
        accelerator.init_trackers("run", {"lr": 0.1})
        accelerator.log({"loss": 1.0}, step=3, log_kwargs={"recorder": {"more": 1}})
        tracker = accelerator.get_tracker("recorder")
        tracker.log({"direct": 1})
        accelerator.end_training()
        return tracker.blank, [opened.name for opened in accelerator.trackers]

    path = tmp_path / "calls"
    assert run_ranks(on_rank, 2, str(path)) == [(False, ["recorder"]), (True, [])]
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({call[0] for call in calls}) == 1
    assert [call[1:] for call in calls] == [
        ["start"],
        ["config", {"lr": 0.1}],
        ["log", {"loss": 1.0}, 3, {"more": 1}],
        ["log", {"direct": 1}, None, {}],
        ["finish"],
    ]


def test_B186_a_configuration_of_anything_becomes_plain_values() -> None:
    config = {"lr": 0.1, "none": None, "opt": {"name": "sgd", "betas": (0.9, 0.99)}, "t": torch.tensor(2.0)}
    with pytest.warns(UserWarning, match="none, opt/betas"):
        flat = flatten_config(config)
    assert flat == {"lr": 0.1, "none": "None", "opt/name": "sgd", "opt/betas": "(0.9, 0.99)", "t": 2.0}


def test_json_lines(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=tmp_path)
    accelerator.init_trackers("run", {"none": None, "path": tmp_path})
    accelerator.log({"loss": torch.tensor(0.5), "note": "x"}, step=1)
    assert accelerator.get_tracker("jsonl", unwrap=True) == tmp_path / "run.jsonl"
    accelerator.end_training()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert lines[0]["config"] == {"none": None, "path": str(tmp_path)}
    assert (lines[1]["step"], lines[1]["values"]) == (1, {"loss": 0.5, "note": "x"})


def test_wrong_choices_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose among jsonl"):
        Accelerator(cpu=True, log_with="jsonlines", project_dir=tmp_path)
    with pytest.raises(ValueError, match="project_dir"):
        Accelerator(cpu=True, log_with="jsonl")
    with pytest.raises(TypeError, match="int"):
        Accelerator(cpu=True, log_with=3)
    with pytest.raises(ValueError, match="call init_trackers first"):
        Accelerator(cpu=True).get_tracker("jsonl")


def test_tensorboard_writes_scalars_and_text(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("run", {"lr": 0.1, "nested": {"x": 1}})
    accelerator.log({"loss": torch.tensor(0.25), "note": "text"}, step=7)
    (tracker,) = accelerator.trackers
    tracker.writer.add_scalar("by hand", 2.0, global_step=1)
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("by hand")] == [(1, 2.0)]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(7, 0.25)]
