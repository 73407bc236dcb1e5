"""Each tutorial runs from top to bottom; its cells assert what they claim, and tests here what is shown."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.kernel import ROOT
from tests.notebooks.test_run import run

NOTEBOOKS = ROOT / "notebooks"
ALL = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
TUTORIALS = [name for name in ALL if name != "tpu_check.ipynb"]
PAGE = ROOT / "docs" / "tutorials.md"

pytestmark = pytest.mark.timeout(180)


def execute(name: str, tmp_path: Path, *parameters: str) -> tuple[str, list[nbformat.NotebookNode]]:
    """Run a copy of the notebook; returns what its cells have printed, and the errors they ended with."""
    copy = tmp_path / f"{name}-test.ipynb"
    copy.write_bytes((NOTEBOOKS / f"{name}.ipynb").read_bytes())
    status, stdout, stderr = run(copy, *parameters)
    executed = ROOT / "build" / "notebooks" / copy.name
    cells = nbformat.read(executed, as_version=4).cells
    for file in executed.parent.glob(f"{copy.stem}*"):
        file.unlink()
    assert status == 0, f"{stdout}\n{stderr}"
    return stdout, [o for cell in cells for o in cell.get("outputs", []) if o.output_type == "error"]


@pytest.mark.parametrize("name", ALL)
def test_it_is_kept_without_outputs(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("name", TUTORIALS)
def test_it_says_first_what_it_shows_and_last_what_to_try(name: str) -> None:
    cells = nbformat.read(NOTEBOOKS / name, as_version=4).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert cells[-1].cell_type == "markdown"
    assert cells[-1].source.startswith("## Try next\n\n- ")


@pytest.mark.parametrize("name", ALL)
def test_the_page_of_tutorials_lists_it(name: str) -> None:
    assert f"(../notebooks/{name})" in PAGE.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_checkpoints_and_resume(num_processes: int, tmp_path: Path) -> None:
    stdout, _ = execute("checkpoints_and_resume", tmp_path, f"NUM_PROCESSES={num_processes}")
    assert f"rank {num_processes - 1}: the machine is gone after step 47" in stdout
    assert stdout.count("going on after step 40") == 2  # the main rank's line, once a resumed run
    assert "0 of 112 losses differ" in stdout


@pytest.mark.slow
def test_debugging(tmp_path: Path) -> None:
    stdout, errors = execute("debugging", tmp_path)
    notice = (
        "the ranks wait for each other: rank 0 waits in gather at Cell In[11], line 5; rank 1 has finished"
    )
    assert notice in stdout
    assert [error.ename for error in errors] == [
        "RuntimeError",
        "WorkerDied",
        "CollectiveMismatchError",
        "LaunchTimeout",
        "LaunchTimeout",
    ]
    assert "raised by rank 1; rank 0 failed in consequence" in "\n".join(errors[0].traceback)


@pytest.mark.slow
def test_evaluation(tmp_path: Path) -> None:
    stdout, _ = execute("evaluation", tmp_path, "NUM_PROCESSES=2")
    assert "gather has counted 53 images twice; rank 0 alone has seen 224" in stdout


@pytest.mark.slow
def test_precision_and_accumulation(tmp_path: Path) -> None:
    stdout, _ = execute("precision_and_accumulation", tmp_path, "NUM_PROCESSES=2")
    assert "144 steps instead of 18" in stdout
    assert "products in torch.float32 and torch.bfloat16; weights are torch.float32 in both" in stdout


@pytest.mark.slow
def test_script_and_machines(tmp_path: Path) -> None:
    # The notebook exports its own file, which has another name here.
    stdout, _ = execute("script_and_machines", tmp_path, "NOTEBOOK=script_and_machines-test.ipynb")
    assert "train.py has cells 3, 5, 6 of script_and_machines-test.ipynb" in stdout
    assert "1 process on cpu, node 1 of 2 (2 processes in all)" in stdout
    losses = re.findall(r"^ +(notebook|script|machines) +([\d.]+)$", stdout, re.MULTILINE)
    assert [run for run, _ in losses] == ["notebook", "script", "machines"]
    assert len({loss for _, loss in losses}) == 1


@pytest.mark.slow
def test_text_classification(tmp_path: Path) -> None:
    stdout, _ = execute("text_classification", tmp_path, "NUM_PROCESSES=2")
    held_out = re.search(r"(\d+) held out, for example", stdout)
    assert held_out
    accuracies = re.findall(r"epoch +\d+: .*, ([\d.]+) on (\d+) held out", stdout)
    assert [counted for _, counted in accuracies] == [held_out[1]] * 4  # each paragraph once, in each epoch
    chance = re.search(r"always '.*': ([\d.]+)", stdout)
    assert chance
    assert float(accuracies[-1][0]) > float(chance[1]) + 0.3
