"""``%%accelerate`` cells in a JupyterLab window: state, order, output and interrupts as they are seen."""

from __future__ import annotations

LOAD = "%load_ext nbaccel\nstep = 3"
START = """\
%%accelerate --cpu -n 2
import os
rank = int(os.environ["RANK"])
total = rank * 100
"""
ADD = """\
%%accelerate
total += step
print("total", total)
"""
SHOW = """\
%%accelerate
{"of": "rank 0", "total": total}
"""
WAIT = """\
%%accelerate
import time
print("busy")
while True:
    time.sleep(0.05)
"""
FAIL = """\
%%accelerate
if rank == 1:
    unknown_name
"""


def test_B046_cells_on_workers_keep_their_state_and_own_their_output(open_notebook):
    notebook = open_notebook(LOAD, START, ADD, SHOW, "step = 5\ntotal", FAIL)
    for index in (0, 1):
        notebook.run(index)

    # Each run writes under the cell that was run, also when an earlier one is run again.
    notebook.run(2)
    assert sorted(notebook.lines(2)) == ["[rank 0] total 3", "[rank 1] total 103"]
    notebook.run(3)
    assert "'total': 3" in notebook.text(3)
    notebook.run(2)
    assert sorted(notebook.lines(2)) == ["[rank 0] total 6", "[rank 1] total 106"]
    assert "'total': 3" in notebook.text(3), "output of a cell that didn't run has changed"
    notebook.run(4)
    assert notebook.text(4).strip() == "6", "rank 0's plain values come home"
    notebook.run(2)
    assert sorted(notebook.lines(2)) == ["[rank 0] total 11", "[rank 1] total 111"], "step has changed"

    notebook.run(5)
    assert "NameError" in notebook.error(5)
    assert "unknown_name" in notebook.error(5)
    assert "rank 1" in notebook.error(5)
    notebook.run(3)
    assert "'total': 11" in notebook.text(3), "a failed cell cost the state"
    notebook.window.screenshot("session")


def test_the_stop_button_ends_a_cell_on_workers_and_not_its_state(open_notebook):
    notebook = open_notebook(LOAD, START, ADD, WAIT)
    for index in (0, 1, 2):
        notebook.run(index)
    notebook.start(3)
    for rank in (0, 1):
        notebook.wait_for_text(3, f"[rank {rank}] busy")
    notebook.interrupt()
    notebook.wait(3, timeout=15)
    assert "KeyboardInterrupt" in notebook.error(3)
    notebook.run(2)
    assert sorted(notebook.lines(2)) == ["[rank 0] total 6", "[rank 1] total 106"]
