"""In a real kernel: what a user sees of the workers' output, live, whole and under the right cell."""

from __future__ import annotations

import re

import pytest

from tests.kernel import Kernel

SETUP = """
import os, subprocess, sys, time
from nbaccel import Accelerator, notebook_launcher

def launch(function, *args, n=2, **options):
    return notebook_launcher(function, args, num_processes=n, cpu=True, **options)
"""


@pytest.fixture
def notebook(kernel: Kernel) -> Kernel:
    kernel.run(SETUP)
    return kernel


def of_rank(text: str, rank: int) -> list[str]:
    label = f"[rank {rank}] "
    return [line.removeprefix(label) for line in text.splitlines() if line.startswith(label)]


def test_B042_lines_of_two_ranks_stay_whole(notebook: Kernel) -> None:
    notebook.run("def work():\n    for i in range(50):\n        print('a' * 200)")
    lines = notebook.run("launch(work)").stdout.splitlines()
    assert lines[0] == "nbaccel: 2 processes on cpu"
    assert sorted(lines[1:]) == ["[rank 0] " + "a" * 200] * 50 + ["[rank 1] " + "a" * 200] * 50


def test_one_process_has_no_label(notebook: Kernel) -> None:
    assert notebook.run("launch(lambda: print('alone'), n=1)").stdout.splitlines()[1:] == ["alone"]


def test_each_stream_arrives_as_itself(notebook: Kernel) -> None:
    notebook.run("def work():\n    print('to out')\n    print('to err', file=sys.stderr)")
    result = notebook.run("launch(work)")
    for rank in (0, 1):
        assert of_rank(result.stdout, rank) == ["to out"]
        assert of_rank(result.stderr, rank) == ["to err"]


def test_text_that_never_saw_python_s_streams_is_caught(notebook: Kernel) -> None:
    notebook.run(
        "def work():\n"
        "    os.write(1, b'bare descriptor\\n')\n"
        "    subprocess.run(['sh', '-c', 'echo from a child; echo its error >&2'], check=True)"
    )
    result = notebook.run("launch(work)")
    for rank in (0, 1):
        assert of_rank(result.stdout, rank) == ["bare descriptor", "from a child"]
        assert of_rank(result.stderr, rank) == ["its error"]


def test_B049_B050_a_line_is_seen_while_the_worker_goes_on(notebook: Kernel) -> None:
    notebook.run(
        "def work():\n"
        "    print('early')\n"  # not flushed by hand
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    print('late')"
    )
    cell = notebook.submit("launch(work)")
    early = [
        cell.wait_for_output(lambda o, r=rank: f"[rank {r}] early" in o.text, timeout=10) for rank in (0, 1)
    ]
    assert not cell.done
    assert max(output.sent for output in early) - cell.submitted < 5
    (notebook.cwd / "go").touch()
    result = cell.wait(10)
    (notebook.cwd / "go").unlink()
    assert of_rank(result.stdout, 1) == ["early", "late"]


def test_B051_what_was_printed_before_a_failure_comes_before_the_error(notebook: Kernel) -> None:
    notebook.run(
        "def work():\n"
        "    if os.environ['RANK'] == '1':\n"
        "        print('before')\n"
        "        raise ValueError('failed')\n"
        "    time.sleep(60)"
    )
    result = notebook.run("launch(work)", may_fail=True)
    assert of_rank(result.stdout, 1) == ["before"]
    assert result.outputs[-1].kind == "error"


def test_output_belongs_to_the_cell_that_launched(notebook: Kernel) -> None:
    notebook.run("def work(text):\n    print(text)")
    first = notebook.submit("launch(work, 'first')")
    second = notebook.submit("launch(work, 'second')")
    assert of_rank(first.wait(20).stdout, 1) == ["first"]
    assert of_rank(second.wait(20).stdout, 1) == ["second"]


@pytest.mark.parametrize(("mode", "ranks"), [("all", [0, 1]), ("main", [0]), ("none", [])])
def test_the_output_that_was_asked_for(notebook: Kernel, mode: str, ranks: list[int]) -> None:
    notebook.run("def work():\n    print('from', os.environ['RANK'])")
    shown = notebook.run(f"launch(work, output={mode!r})").stdout
    assert sorted(re.findall(r"from (\d)", shown)) == [str(rank) for rank in ranks]
    assert ("[rank" in shown) is (mode == "all")


def test_other_ranks_text_is_shown_when_they_fail(notebook: Kernel) -> None:
    notebook.run(
        "def work():\n"
        "    print('text of', os.environ['RANK'])\n"
        "    if os.environ['RANK'] == '1': raise ValueError('failed')\n"
        "    time.sleep(60)"
    )
    result = notebook.run("launch(work, output='main')", may_fail=True)
    assert "text of 1" in result.stdout + result.stderr + result.error.text


def test_B045_progress_bars_of_the_main_rank_are_live_and_whole(notebook: Kernel) -> None:
    notebook.run(
        "from tqdm.auto import tqdm\n"
        "def work():\n"
        "    for _ in tqdm(range(20), mininterval=0, ncols=60):\n"
        "        time.sleep(0.01)"
    )
    result = notebook.run("launch(work)")
    shown = result.stdout + result.stderr
    assert "20/20" in shown
    assert "from fork" not in notebook.transcript.read_text()
    # Not one line for each of the forty updates.
    assert shown.count("\n") < 10


def test_displays_of_workers_reach_the_cell(notebook: Kernel) -> None:
    notebook.run(
        "from IPython.display import HTML, display\n"
        "def work():\n    display(HTML(f\"<b>{os.environ['RANK']}</b>\"))"
    )
    shown = notebook.run("launch(work)").displays
    assert sorted(output.data["text/html"] for output in shown) == ["<b>0</b>", "<b>1</b>"]
