"""Cells on workers, in a real kernel: what runs, what is shown, what an error looks like."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.kernel import ROOT, Kernel
from tests.magics.conftest import Notebook


def test_each_worker_runs_the_cell_and_keeps_its_state(notebook: Notebook) -> None:
    notebook.on_workers("import os\nrank = int(os.environ['RANK'])\nstate = [rank]")
    shown = notebook.on_workers("state.append(10 + rank); print(state)")
    assert sorted(shown.stdout.splitlines()) == ["[rank 0] [0, 10]", "[rank 1] [1, 11]"]


def test_the_first_cell_says_what_runs_and_later_ones_reuse_it(kernel: Kernel) -> None:
    kernel.run("%load_ext nbaccel")
    try:
        first = kernel.run("%%accelerate --cpu -n 2\nimport os; pid = os.getpid()")
        assert first.stdout.startswith("nbaccel: 2 processes on cpu")
        assert kernel.run("%%accelerate\nassert os.getpid() == pid").stdout == ""
        again = kernel.run("%%accelerate --fresh --cpu -n 2\nassert 'pid' not in globals()")
        assert "2 processes on cpu" in again.stdout
        # What is left out is as in the running session, of two options that say where too.
        assert kernel.run("%%accelerate --cpu\nprint(os.environ['WORLD_SIZE'])").stdout.count("2\n") == 2
        assert kernel.run("%%accelerate -n 2\npid").stdout == ""
        resized = kernel.run("%%accelerate --cpu -n 1\nprint(os.environ['WORLD_SIZE'])")
        assert "the session of 2 processes on cpu ends" in resized.stdout
        assert resized.stdout.endswith("1\n")
    finally:
        kernel.run("%accelerate stop")


# --- what a cell may contain ------------------------------------------------------------------------


def test_the_value_of_the_last_expression_is_shown_once_with_all_representations(notebook: Notebook) -> None:
    shown = notebook.on_workers("from IPython.display import HTML\nHTML('<b>bold</b>')")
    assert [output.data.get("text/html") for output in shown.displays] == ["<b>bold</b>"]
    assert shown.stdout == ""
    assert notebook.on_workers("1 + 1;").displays == []
    assert notebook.on_workers("None").displays == []
    notebook.on_workers("[1, int(os.environ['RANK'])]")
    assert notebook.values("_") == [[1, 0], [1, 1]]


def test_in_and_out_have_the_notebook_s_numbers(notebook: Notebook) -> None:
    notebook.on_workers("'first'")
    number = notebook.number_of_last_cell()
    assert notebook.values(f"(In[{number}].strip(), Out[{number}])") == [("'first'", "first")] * 2


def test_top_level_await(notebook: Notebook) -> None:
    notebook.on_workers("import asyncio\nasync def give(x):\n    await asyncio.sleep(0.01)\n    return x")
    shown = notebook.on_workers("got = await give(7)\nawait give(got)")
    assert [output.text for output in shown.displays] == ["7"]
    notebook.on_workers("asyncio.run(give(1))")  # as in any script, where no loop runs


def test_magics_and_shell_commands(notebook: Notebook) -> None:
    notebook.run("folder = 'here'")
    shown = notebook.on_workers("%time x = sum(range(10))\nfiles = !echo {folder} $x\nfiles[0]")
    assert shown.stdout.count("Wall time") == 2
    assert [output.text for output in shown.displays] == ["'here 45'"]
    assert notebook.value("files") == ["here 45"]


def test_cell_magics_inside(notebook: Notebook) -> None:
    assert notebook.on_workers("%%time\ny = 4").stdout.count("Wall time") == 2
    assert notebook.value("y") == 4
    assert "hidden" not in notebook.on_workers("%%capture out\nprint('hidden')").stdout


@pytest.mark.parametrize("text", ["%%time\nz = 1\n1 / 0", "%time 1 / 0"])
def test_an_error_that_a_magic_only_shows_is_raised(notebook: Notebook, text: str) -> None:
    assert notebook.on_workers(text, may_fail=True).error.ename == "ZeroDivisionError"


def test_display_and_figures(notebook: Notebook) -> None:
    shown = notebook.on_workers(
        "import matplotlib.pyplot as plt\nif int(os.environ['RANK']) == 0: plt.plot([1, 2]);\ndisplay('text')"
    )
    assert any("image/png" in output.data for output in shown.displays)
    assert [output.text for output in shown.displays].count("'text'") == 2
    shown = notebook.on_workers("%matplotlib inline\nif int(os.environ['RANK']) == 0: plt.plot([1, 2]);")
    assert sum("image/png" in output.data for output in shown.displays) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit()", "%accelerate stop ends them"),
        ("quit", "%accelerate stop ends them"),
        ("%debug", "nbaccel.last_failure()"),
    ],
)
def test_what_would_end_or_stop_at_a_keyboard_says_what_to_do_instead(
    notebook: Notebook, text: str, said: str
) -> None:
    assert said in notebook.on_workers(text, may_fail=True).error.evalue
    assert notebook.values("1") == [1, 1]


def test_stacks_of_a_late_cell_name_cells_as_the_notebook_does(notebook: Notebook) -> None:
    notebook.run("import time\ndef wait():\n    time.sleep(300)")
    defined = notebook.number_of_last_cell()
    late = notebook.run("%%accelerate --timeout 0.5\n\nwait()", may_fail=True)
    here = notebook.number_of_last_cell()
    assert late.error.ename == "LaunchTimeout"
    assert f"  Cell In[{here}], line 3, in <module>\n    wait()" in late.error.text
    assert f"  Cell In[{defined}], line 3, in wait\n" in late.error.text
    assert notebook.run("%accelerate stacks").stdout.count("MainThread:\n  no user code runs\n") == 2


@pytest.mark.parametrize("question", ["input('name? ')", "import getpass; getpass.getpass()"])
def test_questions_are_refused_with_the_reason(notebook: Notebook, question: str) -> None:
    error = notebook.on_workers(question, may_fail=True).error
    assert error.ename == "StdinNotImplementedError"
    assert "can't be asked in a worker" in error.evalue
    assert "normal cell" in error.evalue


def test_a_cell_for_workers_inside_one_is_refused(notebook: Notebook) -> None:
    error = notebook.on_workers("%accelerate status", may_fail=True).error
    assert "runs on the workers already" in error.evalue


@pytest.mark.parametrize("ranks", ["0", "1", "0,1"])
def test_ranks_that_run_the_cell(notebook: Notebook, ranks: str) -> None:
    shown = notebook.on_workers("print('ran')\nint(os.environ['RANK'])", f"--ranks {ranks}")
    chosen = [int(rank) for rank in ranks.split(",")]
    assert sorted(shown.stdout.splitlines()) == [f"[rank {rank}] ran" for rank in chosen]
    assert [output.text for output in shown.displays] == [str(chosen[0])]


def test_ranks_that_are_not_there(notebook: Notebook) -> None:
    error = notebook.on_workers("pass", "--ranks 1,5", may_fail=True).error
    assert "there is no rank 5" in error.evalue
    assert "ranks 0-1" in error.evalue


def test_output_of_the_main_rank_or_of_none(notebook: Notebook) -> None:
    assert notebook.on_workers("print('x')", "--output main").stdout == "x\n"
    assert notebook.on_workers("print('x')", "--output none").stdout == ""


IPYTHON_HIDES_ITS_FRAMES = "__tracebackhide__" in inspect.getsource(InteractiveShell.run_cell_magic)
"""IPython 8 shows the frames that run a cell magic, whichever it is, and there is no way around it."""


# --- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%accelerate\n1 / 0", 2),
        ("%%accelerate\n\n\nx = 1\n1 / 0\ny = 2", 5),
        ("\n%%accelerate\n# comment\n1 / 0", 4),
        ("%%accelerate\ndef f():\n    return 1 / 0\n\nf()", 3),
        ("%%accelerate --output all\n%time pass\nif True:\n    1 / 0", 4),
    ],
)
def test_an_error_shows_its_own_line_of_the_cell_once(notebook: Notebook, cell: str, line: int) -> None:
    failed = notebook.run(cell, may_fail=True)
    assert failed.error.ename == "ZeroDivisionError"
    number = notebook.number_of_last_cell()
    marked = [text for text in failed.error.text.splitlines() if text.startswith("----> ") or "--> " in text]
    assert f"Cell In[{number}], line {line}" in failed.error.text
    assert any(text.split()[1:2] == [str(line)] and "1 / 0" in text for text in marked)
    assert "nbaccel/" not in failed.error.text  # none of our own frames
    if IPYTHON_HIDES_ITS_FRAMES:
        assert "IPython/" not in failed.error.text


def test_an_error_names_the_rank(notebook: Notebook) -> None:
    failed = notebook.on_workers("if os.environ['RANK'] == '1': raise KeyError('missing')", may_fail=True)
    assert failed.error.ename == "KeyError"
    assert "rank 1" in failed.error.text
    notebook.on_workers("pass")


def test_a_failed_cell_s_frames_have_the_notebook_s_names_only(notebook: Notebook) -> None:
    notebook.run("divisor, unused = 0, 'spare'")
    notebook.on_workers("unused; 5")
    notebook.on_workers("5 / divisor", may_fail=True)
    told = notebook.run("print(nbaccel.last_failure())").stdout
    shown = [line.split(" = ")[0].strip() for line in told.splitlines() if " = " in line]
    assert shown[0] == "divisor"
    assert "unused" in shown
    assert not {"_ih", "_oh", "_dh", "In", "Out", "_", "_i", "get_ipython", "exit", "open"} & set(shown)


def test_a_syntax_error_shows_the_line_and_starts_nothing(notebook: Notebook) -> None:
    failed = notebook.run("%%accelerate\nx = 1\ndef f(:\n    pass", may_fail=True)
    assert failed.error.ename == "SyntaxError"
    assert "line 3" in failed.error.text
    assert "def f(:" in failed.error.text
    assert failed.stdout == ""


def test_text_printed_before_the_error_comes_first(notebook: Notebook) -> None:
    failed = notebook.on_workers("print('before')\n1 / 0", may_fail=True)
    assert failed.stdout.count("before") == 2
    assert failed.outputs[-1].kind == "error"


RUN_ALL = """
import sys, nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

cells = ["%load_ext nbaccel", "%%accelerate --cpu -n 2\\nraise ValueError('on purpose')", "print('reached')"]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
try:
    NotebookClient(book, timeout=60).execute()
except CellExecutionError as error:
    print("stopped by", error.ename)
print([[output.output_type for output in cell.outputs].count("error") for cell in book.cells])
print(book.cells[2].outputs)
"""


def test_B072_a_failed_cell_stops_a_batch_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)},
    )
    assert done.stdout.splitlines() == ["stopped by ValueError", "[0, 1, 0]", "[]"], done.stderr


def test_sys_exit_ends_the_cell_only(notebook: Notebook) -> None:
    notebook.on_workers("kept = 1\nimport sys\nsys.exit(0)")
    failed = notebook.on_workers("kept = 2\nsys.exit(3)", may_fail=True)
    assert "sys.exit(3)" in failed.error.evalue
    assert notebook.values("kept") == [2, 2]


# --- options ----------------------------------------------------------------------------------------


def test_gpus_that_are_not_there(kernel: Kernel) -> None:
    kernel.run("import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n%load_ext nbaccel")
    before = kernel.relatives()
    for options, part in (("--gpus 2", "--cpu -n 2"), ("--gpu-ids 0", "--cpu -n 1")):
        failed = kernel.run(f"%%accelerate {options}\nprint('ran')", may_fail=True)
        assert options in failed.error.evalue
        assert "no accelerator is visible" in failed.error.evalue
        assert part in failed.error.evalue
        assert failed.stdout == ""
    assert set(kernel.relatives()) <= set(before)
    kernel.run("del os.environ['CUDA_VISIBLE_DEVICES']")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("%%accelerate --gpuss 2", "did you mean --gpus?"),
        ("%%accelerate --cpu --gpus 2", "--cpu and --gpus 2 contradict"),
        ("%%accelerate -n 0", "at least 1"),
    ],
)
def test_lines_that_mean_nothing_start_nothing(kernel: Kernel, line: str, part: str) -> None:
    kernel.run("%load_ext nbaccel")
    failed = kernel.run(f"{line}\nprint('ran')", may_fail=True)
    assert part in failed.error.evalue
    assert failed.stdout == ""
    assert kernel.workers() == []


def test_another_precision_holds_for_accelerators_made_from_then_on(notebook: Notebook) -> None:
    notebook.on_workers("from nbaccel import Accelerator\nfirst = Accelerator()\npid = os.getpid()")
    notebook.on_workers("second = Accelerator()\nassert os.getpid() == pid", "--bf16")
    assert notebook.values("(first.mixed_precision, second.mixed_precision)") == [("no", "bf16")] * 2
    notebook.on_workers("third = Accelerator()")
    assert notebook.values("third.mixed_precision") == ["bf16"] * 2
