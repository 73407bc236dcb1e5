"""A notebook on XLA devices, in a real kernel, with a stand-in for torch_xla: what the user sees."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel import Kernel
from tests.launch.fake_tpu import PACKAGES

_BEGIN = f"""
import os, sys
sys.path.insert(0, {str(PACKAGES)!r})
os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="3")
from nbaccel import notebook_launcher
"""
_END = f"""
sys.path.remove({str(PACKAGES)!r})
del os.environ["PJRT_DEVICE"], os.environ["CPU_NUM_DEVICES"]
"""


@pytest.fixture
def notebook(kernel: Kernel) -> Iterator[Kernel]:
    kernel.run(_BEGIN)
    yield kernel
    kernel.run(_END)


def test_a_notebooks_function_on_threads(notebook: Kernel):
    result = notebook.run(
        """
        from nbaccel.runtime.environment import ProcessEnvironment
        class Score:
            def __init__(self, rank): self.rank = rank
        def train(scale):
            rank = ProcessEnvironment.detect().rank
            print("works")
            display(f"shown by {rank}")
            return Score(rank * scale)
        scores = notebook_launcher(train, (10,), returns="all")
        print([type(score) is Score for score in scores], [score.rank for score in scores])
        """
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "nbaccel: 1 process of 3 threads on xla cpu client"
    assert sorted(line for line in lines if "works" in line) == [f"[rank {rank}] works" for rank in range(3)]
    assert lines[-1] == "[True, True, True] [0, 10, 20]"
    assert sorted(shown.data["text/plain"] for shown in result.displays) == [
        f"'shown by {rank}'" for rank in range(3)
    ]
    assert notebook.run("print('torch_xla' in sys.modules)").stdout == "False\n"


def test_the_error_of_a_thread_shows_its_cell(notebook: Kernel):
    notebook.run(
        """
        from nbaccel.runtime.environment import ProcessEnvironment
        def train():
            if ProcessEnvironment.detect().rank == 1:
                return {}["missing"]  # here
        """
    )
    error = notebook.run("notebook_launcher(train)", may_fail=True).error
    assert error.ename == "KeyError"
    assert '{}["missing"]  # here' in error.text
    assert "raised by rank 1" in error.text


def test_cells_on_threads_are_refused_in_one_line(notebook: Kernel):
    notebook.run("%load_ext nbaccel")
    error = notebook.run("%%accelerate\n1 + 1", may_fail=True).error
    assert error.ename == "LaunchError"
    assert error.evalue.startswith("xla cpu client runs 3 ranks as threads of one process")
    assert "notebook_launcher(train)" in error.evalue
    one = notebook.run("%%accelerate -n 1\n2 + 3")
    assert "5" in [shown.data["text/plain"] for shown in one.displays]
    notebook.run("%accelerate stop")


def test_B070_the_end_of_the_kernel_ends_threads_too(fresh_kernel: Kernel):
    fresh_kernel.run(_BEGIN)
    cell = fresh_kernel.submit(
        """
        import threading
        def train():
            print("waits")
            threading.Event().wait(100)
        notebook_launcher(train)
        """
    )
    cell.wait_for_text("[rank 2] waits", timeout=60)
    fresh_kernel.kill()
    fresh_kernel.wait_until_alone(5)
