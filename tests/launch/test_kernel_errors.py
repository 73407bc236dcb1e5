"""In a real kernel: a failing worker is one error of the cell, the worker's own, with its source."""

from __future__ import annotations

import re

import pytest

from tests.kernel import Kernel

SETUP = """
import os, signal, sys, time
from nbaccel import Accelerator, notebook_launcher

def launch(function, *args, n=2, **options):
    return notebook_launcher(function, args, num_processes=n, cpu=True, **options)
"""


@pytest.fixture
def notebook(kernel: Kernel) -> Kernel:
    kernel.run(SETUP)
    return kernel


def test_B053_the_error_of_the_cell_is_the_worker_s_own(notebook: Kernel) -> None:
    notebook.run(
        "def inner(x):\n"
        "    return 1 / x  # the line to blame\n"
        "def work():\n"
        "    return inner(0 if os.environ['RANK'] == '1' else 1)"
    )
    result = notebook.run("launch(work)", may_fail=True)
    error = result.error  # one, not two
    assert (error.ename, error.evalue) == ("ZeroDivisionError", "division by zero")
    assert "return 1 / x" in error.text
    assert re.search(r"Cell In\[\d+\], line 2|ipykernel_\d+/\d+\.py", error.text)
    assert "rank 1" in error.text


def test_B053_it_can_be_caught_as_itself_and_knows_its_rank(notebook: Kernel) -> None:
    notebook.run(
        "class MyError(Exception):\n"
        "    pass\n"
        "def work():\n"
        "    if os.environ['RANK'] == '1': raise MyError('mine', 7)\n"
        "    time.sleep(60)"
    )
    shown = notebook.run("try:\n    launch(work)\nexcept MyError as e:\n    print(e.args, e.rank)").stdout
    assert shown.endswith("('mine', 7) 1\n")


def test_B056_control_is_back_within_half_a_second_and_nobody_is_left(notebook: Kernel) -> None:
    notebook.run(
        "def work():\n"
        "    accelerator = Accelerator()\n"
        "    accelerator.wait_for_everyone()\n"
        "    if accelerator.process_index == 1:\n"
        "        open('raised', 'w').write(repr(time.time()))\n"
        "        raise ValueError('the cause')\n"
        "    accelerator.wait_for_everyone()"
    )
    result = notebook.run("launch(work)", may_fail=True)
    notebook.wait_until_alone(0)
    assert (result.error.ename, result.error.evalue) == ("ValueError", "the cause")
    raised = float((notebook.cwd / "raised").read_text())
    assert result.finished - raised < 1.0  # 0.5 s, and the kernel's own formatting of the traceback


def test_a_model_that_holds_the_process_group_does_not_hold_up_its_peers(notebook: Kernel) -> None:
    notebook.run(
        "import torch\n"
        "def work():\n"
        "    accelerator = Accelerator()\n"
        "    model = accelerator.prepare(torch.nn.Linear(2, 1))\n"
        "    accelerator.backward(model(torch.ones(1, 2)).sum())\n"
        "    if accelerator.process_index == 1:\n"
        "        raise ValueError('the cause')\n"
        "    accelerator.wait_for_everyone()"
    )
    result = notebook.run("launch(work)", may_fail=True, timeout=20)
    assert result.error.evalue == "the cause"
    notebook.wait_until_alone(0)


def test_B057_a_killed_worker_is_named_with_signal_and_likely_cause(notebook: Kernel) -> None:
    notebook.run(
        "def work():\n"
        "    if os.environ['RANK'] == '1':\n"
        "        print('last words', file=sys.stderr)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    time.sleep(60)"
    )
    error = notebook.run("launch(work)", may_fail=True, timeout=20).error
    assert error.ename == "WorkerDied"
    for part in ("rank 1", "SIGKILL", "memory", "last words"):
        assert part in error.evalue
    assert "supervision.py" not in error.text  # the cell, and none of the launcher's own lines
    notebook.wait_until_alone(0)


def test_a_timeout_shows_where_each_rank_was(notebook: Kernel) -> None:
    notebook.run(
        "def sleeps():\n    time.sleep(60)\n"
        "def work():\n    sleeps() if os.environ['RANK'] == '1' else Accelerator().wait_for_everyone()"
    )
    result = notebook.run("launch(work, timeout=3)", may_fail=True, timeout=30)
    assert result.error.ename == "LaunchTimeout"
    shown = result.stderr + result.stdout + result.error.text
    assert "in sleeps" in shown
    assert "supervision.py" not in shown
    assert result.seconds < 8
    notebook.wait_until_alone(0)


def test_later_cells_go_on_after_a_failure(notebook: Kernel) -> None:
    notebook.run("kept = 41\ndef work(x):\n    return 1 / x")
    assert notebook.run("launch(work, 0)", may_fail=True).error.ename == "ZeroDivisionError"
    assert notebook.run("kept + launch(work, 1)").displays[0].text == "42.0"
