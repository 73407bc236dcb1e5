"""Kernels that are restarted, shut down or lose their window: which processes are left."""

from __future__ import annotations

import pytest

RUNNING = """\
from nbaccel import notebook_launcher

def wait():
    import time
    print("waiting")
    while True:
        time.sleep(0.05)

notebook_launcher(wait, num_processes=2, cpu=True)
"""
SESSION = """\
%load_ext nbaccel
"""
WORKERS = """\
%%accelerate --cpu -n 2
print("here")
"""

GONE_S = 10.0


@pytest.mark.parametrize("end", ["restart", "shut_down"])
def test_the_end_of_a_kernel_is_the_end_of_its_workers(server, open_notebook, end):
    notebook = open_notebook(SESSION, WORKERS, RUNNING, "'new' + ' kernel'")
    notebook.run(0)
    notebook.run(1)
    notebook.start(2)  # a session and a launch, both alive
    for rank in (0, 1):
        notebook.wait_for_text(2, f"[rank {rank}] waiting")
    before = server.relatives()
    assert len(before) >= 6, before  # kernel, server process, four workers

    getattr(notebook, end)()
    server.wait_until_gone(before, GONE_S)
    if end == "shut_down":
        assert server.relatives() == {}
        return
    notebook.window.wait_until_idle()
    assert "new kernel" in notebook.run(3)
    notebook.run(0)
    assert "[rank 1] here" in notebook.run(1)


def test_a_closed_window_costs_nothing(server, open_notebook):
    """The kernel goes on without a window, and a new window shows what it has printed by then."""
    notebook = open_notebook(SESSION, WORKERS)
    notebook.run(0)
    notebook.run(1)
    before = server.relatives()
    notebook.save()
    notebook.reload()
    assert set(before) <= set(server.relatives())
    assert "[rank 1] here" in notebook.text(1)
    assert "[rank 1] here" in notebook.run(1)
    assert len(server.sessions()) == 1
