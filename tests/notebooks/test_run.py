"""`notebooks/run.py`: live output, exit status, where the copy lies, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from tests import leaks
from tests.kernel import ROOT

RUNNER = ROOT / "notebooks" / "run.py"
MARK = "NBACCEL_TEST_RUNNER"


def write_notebook(path: Path, *cells: str, tags: tuple[str, ...] = ()) -> Path:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_markdown_cell(cell[1:]) if cell.startswith("#") else nbformat.v4.new_code_cell(cell)
        for cell in cells
    ]
    notebook.cells[0].metadata["tags"] = list(tags)
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def name() -> str:
    return f"test-{os.getpid()}"


@pytest.fixture
def notebook(tmp_path: Path, name: str):
    """Path of a notebook to write; what its run leaves in the build folder is removed."""
    yield tmp_path / f"{name}.ipynb"
    for file in (ROOT / "build" / "notebooks").glob(f"{name}*"):
        file.unlink()


def start(notebook: Path, *parameters: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(RUNNER), str(notebook), *parameters],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: notebook.stem},
    )


def run(notebook: Path, *parameters: str) -> tuple[int, str, str]:
    with start(notebook, *parameters) as process:
        stdout, stderr = process.communicate(timeout=280)
    return process.returncode, stdout, stderr


def test_success_shows_the_output_and_leaves_the_executed_copy(notebook: Path, name: str) -> None:
    write_notebook(
        notebook,
        "## Numbers\n\nprose",
        "print('half', end=' ')\nprint('line')\n6 * 7",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    )
    original = notebook.read_bytes()
    status, stdout, stderr = run(notebook)
    assert status == 0, stderr
    assert "[1/2] Numbers\n    half line\n    42\n" in stdout
    assert f"figure: build/notebooks/{name}-1.png" in stdout
    assert notebook.read_bytes() == original
    executed = nbformat.read(ROOT / "build" / "notebooks" / f"{name}.ipynb", as_version=4)
    assert executed.cells[1].outputs[0].text == "half line\n"
    figure = ROOT / "build" / "notebooks" / f"{name}-1.png"
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_output_appears_while_the_cell_runs(notebook: Path, tmp_path: Path) -> None:
    write_notebook(
        notebook,
        "import os, time\n"
        "print('early')\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)",
    )
    with start(notebook) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "early" in line:  # seen before the cell can end
                (tmp_path / "go").touch()
                break
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_failing_cell_shows_its_traceback_and_stops_the_run(notebook: Path, name: str) -> None:
    write_notebook(notebook, "def f():\n    return 1 / 0\nf()", "print('never')")
    status, stdout, stderr = run(notebook)
    assert status == 1
    assert "ZeroDivisionError: division by zero" in stderr
    assert "return 1 / 0" in stderr
    assert "never" not in stdout
    assert (ROOT / "build" / "notebooks" / f"{name}.ipynb").exists()


def test_a_dying_kernel_is_an_error(notebook: Path) -> None:
    write_notebook(notebook, "import os\nos._exit(5)")
    status, _, stderr = run(notebook)
    assert status == 1
    assert "kernel died" in stderr


def test_parameters_replace_those_of_the_tagged_cell(notebook: Path) -> None:
    write_notebook(notebook, "N = 2\nNAME = 'a'", "print(N + 1, NAME)", tags=("parameters",))
    status, stdout, _ = run(notebook, "N=40", "NAME=some text")
    assert status == 0
    assert "41 some text" in stdout


@pytest.mark.parametrize(
    ("parameter", "reason"),
    [("M=1", "M is not set"), ("N", "is not NAME=VALUE"), ("1=2", "is not NAME=VALUE")],
)
def test_a_wrong_parameter_is_refused_before_anything_runs(
    notebook: Path, parameter: str, reason: str
) -> None:
    write_notebook(notebook, "N = 2", tags=("parameters",))
    status, stdout, stderr = run(notebook, parameter)
    assert status == 2
    assert reason in stderr
    assert stdout == ""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_stopping_it_leaves_nothing_behind(notebook: Path, name: str, signum: signal.Signals) -> None:
    write_notebook(
        notebook,
        "import time\n"
        "from nbaccel import notebook_launcher\n"
        "def wait():\n    print('worker is up', flush=True)\n    time.sleep(100)\n"
        "notebook_launcher(wait, num_processes=2, cpu=True)",
    )
    with start(notebook) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "[rank 1] worker is up" in line:
                break
        process.send_signal(signum)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in stderr
    deadline = time.monotonic() + 2
    while left := leaks.marked_processes(MARK, name):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    assert not [p for p in psutil.Process().children(recursive=True) if p.pid == process.pid]
