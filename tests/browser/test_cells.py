"""What a person sees of launches in a JupyterLab window. Each test is a small story in one notebook, since
opening one takes seconds.
"""

from __future__ import annotations

import re

HELLO = """\
from nbaccel import notebook_launcher

def hello():
    import os, time
    print("before")
    while not os.path.exists("go"):
        time.sleep(0.02)
    print("after")
    return int(os.environ["RANK"]) + 40

notebook_launcher(hello, num_processes=2, cpu=True)
"""
FIGURE = """\
def draw():
    import matplotlib.pyplot as plt
    from IPython.display import HTML, display
    print("drawing")
    plt.plot([1, 3, 2])
    plt.show()
    display(HTML("<b id='bold'>from a worker</b>"))

notebook_launcher(draw, num_processes=2, cpu=True, output="main")
"""
FAILURE = """\
def divide(zero):
    import os
    if os.environ["RANK"] == "1":
        return 40 / zero

notebook_launcher(divide, (0,), num_processes=2, cpu=True)
"""
BAR = """\
from nbaccel import notebook_launcher

def count():
    import os, time
    from tqdm import tqdm
    for step in tqdm(range(100), desc="steps", mininterval=0, ncols=60):
        while step == 50 and not os.path.exists("on"):
            time.sleep(0.02)

notebook_launcher(count, num_processes=2, cpu=True)
"""
ENDLESS = """\
def wait():
    import time
    print("waiting")
    while True:
        time.sleep(0.05)

notebook_launcher(wait, num_processes=2, cpu=True)
"""


def test_B049_lines_figures_and_errors_of_workers_in_the_cell(open_notebook):
    notebook = open_notebook(HELLO, FIGURE, FAILURE)

    notebook.start(0)
    for rank in (0, 1):
        notebook.wait_for_text(0, f"[rank {rank}] before")
    assert notebook.prompt(0) == "[*]:"
    assert "after" not in notebook.text(0)
    (notebook.path.parent / "go").touch()
    notebook.wait(0)
    lines = notebook.lines(0)
    assert lines[0] == "nbaccel: 2 processes on cpu"
    assert sorted(lines[1:-1]) == sorted(f"[rank {r}] {w}" for r in (0, 1) for w in ("before", "after"))
    assert lines[-1] == "40"

    notebook.run(1)
    assert "drawing" in notebook.text(1)
    assert notebook.outputs(1, "img").count() == 1
    assert notebook.outputs(1, "#bold").inner_text() == "from a worker"

    notebook.run(2)
    error = notebook.error(2)
    assert "ZeroDivisionError" in error
    assert "rank 1" in error
    assert "return 40 / zero" in error
    assert re.search(r"Cell In\s?\[3\], line 4", error), error
    assert "line 6" in error, "the line that launched"
    assert "nbaccel/launch" not in error, "frames of the launcher are of no use to the reader"
    notebook.window.screenshot("lines-figures-errors")


def test_B045_a_bar_of_a_worker_is_one_line_that_changes_in_place(open_notebook):
    notebook = open_notebook(BAR, "print('next')")

    def bars() -> list[str]:
        return [line for line in notebook.lines(0) if "steps" in line]

    notebook.start(0)
    notebook.wait_for_text(0, "50/100")
    halfway = bars()
    (notebook.path.parent / "on").touch()
    notebook.wait(0)
    notebook.window.screenshot("bar")
    assert len(halfway) == 1, "only the main rank's bar is live, in one line"
    assert halfway[0].startswith("[rank 0] steps:  50%")
    main, other = sorted(bars())  # who comes last is chance
    assert main.startswith("[rank 0] steps: 100%")
    assert other.startswith("[rank 1] steps: 100%"), "the others' last state, once"
    assert notebook.run(1).strip() == "next"


def test_the_stop_button_and_its_keys_end_a_launch_with_one_error(open_notebook):
    notebook = open_notebook("from nbaccel import notebook_launcher", ENDLESS, ENDLESS, "1 + 1")
    notebook.run(0)
    for index, stop in ((1, notebook.interrupt), (2, lambda: notebook.interrupt_by_keys(2))):
        notebook.start(index)
        for rank in (0, 1):
            notebook.wait_for_text(index, f"[rank {rank}] waiting")
        stop()
        notebook.wait(index, timeout=15)
        assert "KeyboardInterrupt" in notebook.error(index)
        assert notebook.text(index).count("Traceback (most recent call last)") == 1, notebook.text(index)
    notebook.window.screenshot("interrupt")
    assert notebook.run(3).strip() == "2"
