"""Magics and shell commands inside a function of the notebook that is launched."""

from __future__ import annotations


def test_magics_and_commands_in_a_launched_function(kernel):
    result = kernel.run(
        """
from nbaccel import notebook_launcher

def work(x):
    own = x + 1
    timed = %timeit -n 3 -r 1 -q -o own + 1
    listed = !echo {own} from the shell
    %env NBACCEL_TEST_MAGIC=set
    !echo straight to the cell
    import os
    return timed.loops, list(listed), os.environ["NBACCEL_TEST_MAGIC"]

print(notebook_launcher(work, (4,), num_processes=1, cpu=True))
"""
    )
    assert "(3, ['5 from the shell'], 'set')" in result.stdout
    assert "straight to the cell" in result.stdout
