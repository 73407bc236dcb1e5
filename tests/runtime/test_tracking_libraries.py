"""Each tracker against its real library, where that is installed: what two ranks note is in its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nbaccel.accelerator import Accelerator
from nbaccel.runtime.tracking.adapters import MLflowTracker, WandBTracker
from nbaccel.runtime.tracking.base import plain_config
from nbaccel.runtime.tracking.choice import TRACKERS
from nbaccel.runtime.tracking.run_tracker import table_rows

ROOT = Path(__file__).parent.parent.parent
PLAIN = {"lr": 0.5, "net": {"depth": 3}, "none": None, "t": 2.0, "odd": "odd"}
TEXT = {"lr": "0.5", "net/depth": "3", "none": "None", "t": "2.0", "odd": "odd"}
LOSS = [[0, 1.0], [1, 0.5], [2, 0.25]]

EXPECTED: dict[str, dict[str, Any]] = {
    "tensorboard": {"config": dict.fromkeys(TEXT, True), "more": ["text", [[8, 8]]]},
    "wandb": {
        "config": PLAIN,
        "more": ["image/_type: images/separated", "note: text", "table/_type: table-file"],
    },
    "mlflow": {"config": TEXT, "more": ["first", "test", "FINISHED", 1]},
    "trackio": {"config": PLAIN, "more": ["text"] * 3},
    "comet_ml": {
        "config": {"lr": 0.5, "net|depth": 3, "none": None, "t": 2.0, "odd": "odd"},
        "more": ["text"] * 3,
    },
    "aim": {
        "config": {"hparams": True, "depth": True, "odd": True},
        "more": {"loss": True, "note": True, "image": True},
        "loss": None,
    },
    "clearml": {
        "config": ["lr = 0.5", "net {", "  depth = 3", "}", "none = null", "t = 2.0", 'odd = "odd"'],
        "more": ["image", "table"],
    },
    "dvclive": {"config": PLAIN, "more": "text"},
    "swanlab": {"config": {**PLAIN, "none": {}}, "more": [True, True]},
}


def test_every_library_is_covered() -> None:
    assert set(EXPECTED) == {name for name, (_, package) in TRACKERS.items() if package is not None}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_two_ranks_note_is_in_the_librarys_files(name: str, tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} isn't installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.tracker_files", name, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        timeout=110,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("found:")]
    assert lines, done.stdout + done.stderr
    found = json.loads(lines[0].removeprefix("found:"))
    # One run, of the main rank, though two ranks noted the same.
    assert found == {"opened": [1, 0], "runs": 1, "loss": LOSS, **EXPECTED[name]}
    # The value that no tracker knows, and nothing else of these.
    assert "odd" in done.stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_a_missing_library_is_one_line_with_the_command(name: str, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("nbaccel.runtime.tracking.choice.find_spec", lambda package: None)
    with pytest.raises(ValueError, match=f"pip install {name.replace('_', '-')}$") as caught:
        Accelerator(cpu=True, log_with=name, project_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_configuration_keeps_what_can_be_written_and_says_what_becomes_text() -> None:
    import torch

    config = {"lr": 0.1, "none": None, "on": True, "betas": (0.9, 0.99), "opt": {"t": torch.tensor(2.0)}}
    assert plain_config(config) == {
        "lr": 0.1,
        "none": None,
        "on": True,
        "betas": [0.9, 0.99],
        "opt": {"t": 2.0},
    }
    with pytest.warns(UserWarning, match=r"plain values: opt/device, all$"):
        plain = plain_config({"opt": {"device": torch.device("cpu")}, "all": [1, {2}]})
    assert plain == {"opt": {"device": "cpu"}, "all": [1, "{2}"]}


def test_a_table_is_rows_or_a_data_frame() -> None:
    assert table_rows(["a"], [[1]], None)
    assert not table_rows(None, None, object())
    with pytest.raises(ValueError, match="dataframe="):
        table_rows(["a"], None, None)


def test_options_of_the_libraries_own_win_over_the_projects_name() -> None:
    tracker = MLflowTracker("project", run_name="mine", tags='{"a": "1"}')
    assert (tracker.experiment_name, tracker.run_name, tracker.options["tags"]) == (
        "project",
        "mine",
        {"a": "1"},
    )
    left = WandBTracker("project")
    with pytest.warns(UserWarning, match="wandb leaves out 'x', a set: sets aren't known") as caught:
        for _ in range(2):
            left.say_left_out("x", {1}, "sets aren't known")
    assert len(caught) == 1
