"""A kernel with the magics loaded, and workers that end with the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel import Kernel, Result


class Notebook:
    """A kernel whose cells may run on workers."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.run = kernel.run
        self.submit = kernel.submit

    def on_workers(self, code: str, options: str = "", *, may_fail: bool = False) -> Result:
        """Run a cell on two workers."""
        return self.kernel.run(f"%%accelerate {options}\n{code}", may_fail=may_fail)

    def value(self, expression: str) -> object:
        """A plain value of the notebook."""
        return eval(self.kernel.run(f"print('=>', repr({expression}))").stdout.rsplit("=> ", 1)[1])

    def number_of_last_cell(self) -> int:
        """``n`` of ``In[n]``; IPython's own counter is ahead of the running cell or not, by version."""
        number = self.value("get_ipython().compile._filename_map[sys._getframe().f_code.co_filename] - 1")
        assert isinstance(number, int)
        return number

    def values(self, expression: str) -> list[object]:
        """A plain value of each worker, by rank."""
        lines = self.on_workers(f"print('=>', repr({expression}))").stdout.splitlines()
        by_rank = sorted(line.split(" => ", 1) for line in lines if " => " in line)
        return [eval(text) for _, text in by_rank]


def prepare(kernel: Kernel) -> Notebook:
    kernel.run("%load_ext nbaccel")
    kernel.run("import nbaccel, os, sys, time, torch")
    notebook = Notebook(kernel)
    notebook.on_workers("pass", "--cpu -n 2")
    return notebook


@pytest.fixture
def notebook(kernel: Kernel) -> Iterator[Notebook]:
    yield prepare(kernel)
    kernel.run("%accelerate stop", may_fail=True)


@pytest.fixture
def fresh_notebook(fresh_kernel: Kernel) -> Iterator[Notebook]:
    yield prepare(fresh_kernel)
    fresh_kernel.run("%accelerate stop", may_fail=True)
