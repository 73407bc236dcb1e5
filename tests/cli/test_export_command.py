"""``nbaccel export``: a notebook becomes a script that ``nbaccel launch`` runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner, Result

from nbaccel.cli.app import application
from tests.cli.conftest import Done


@pytest.fixture
def train(tmp_path: Path) -> Path:
    book = nbformat.v4.new_notebook()
    book.cells = [
        nbformat.v4.new_code_cell(
            "import torch\nfrom nbaccel import Accelerator, notebook_launcher\n%pip list"
        ),
        nbformat.v4.new_code_cell("offset = 10"),
        nbformat.v4.new_code_cell(
            "def train(count):\n"
            "    acc = Accelerator()\n"
            "    mine = torch.tensor([acc.process_index + offset + count])\n"
            "    acc.print('gathered', acc.gather(mine).tolist())\n"
            "    acc.end_training()\n"
        ),
        nbformat.v4.new_code_cell("notebook_launcher(train, (100,), num_processes=2)"),
    ]
    path = tmp_path / "train.ipynb"
    nbformat.write(book, path)
    return path


def call(*words: object) -> Result:
    return CliRunner().invoke(application, ["export", *map(str, words)], catch_exceptions=False)


def test_the_script_runs_by_nbaccel_launch(train: Path, run: Callable[..., Done]) -> None:
    result = call(train, "-o", "train.py")
    assert result.exit_code == 0, result.output
    assert "cells 1, 2, 3, 4" in result.output
    assert "%pip list" in result.output
    done = run("launch", "-q", "--cpu", "--num-processes", "2", "train.py")
    assert (done.code, done.lines) == (0, ["[rank 0] gathered [110, 111]"]), done.err


def test_a_file_that_is_there_is_not_written_over(train: Path, tmp_path: Path) -> None:
    target = tmp_path / "train.py"
    target.write_text("mine")
    result = call(train)
    assert result.exit_code == 2
    assert "--force" in result.output
    assert target.read_text() == "mine"
    assert call(train, "--force").exit_code == 0
    assert "def train" in target.read_text()


def test_errors_exit_2(train: Path, tmp_path: Path) -> None:
    assert call(tmp_path / "none.ipynb").exit_code == 2
    assert call(train, "--function", "fit").exit_code == 2
    result = call(train, "--function", "train", "--tag", "x")
    assert result.exit_code == 2
    assert "--function and --tag" in result.output
    assert "def train" in call(train, "-o", "-").output
