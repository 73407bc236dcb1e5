"""What is measured: each scenario runs a notebook's cells in a kernel of its own, once for each door.

A scenario gets a fresh kernel and a door and returns seconds by measure. It must do the same for both doors:
nothing here may know which one it has.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.kernel import Cell, Kernel

Measures = dict[str, float]


@dataclass(frozen=True)
class Door:
    """A package that offers `notebook_launcher` and `Accelerator`."""

    package: str

    @property
    def imports(self) -> str:
        """The cell that a user would write."""
        return f"from {self.package} import Accelerator, notebook_launcher"


@dataclass(frozen=True)
class Goal:
    """What a measure must reach, as a share of the incumbent's or as seconds."""

    ratio: float | None = None
    seconds: float | None = None

    def is_met(self, ours: float, theirs: float) -> bool:
        if self.ratio is not None and ours > self.ratio * theirs:
            return False
        return self.seconds is None or ours <= self.seconds

    def __str__(self) -> str:
        parts = [] if self.ratio is None else [f"<= {self.ratio:g} x"]
        parts += [] if self.seconds is None else [f"<= {self.seconds:g} s"]
        return ", ".join(parts) or "-"


@dataclass(frozen=True)
class Scenario:
    """One notebook, and the measures that it gives, each with its goal."""

    run: Callable[[Kernel, Door], Measures]
    goals: dict[str, Goal]
    repeats: int
    """How often to run it with each door; the median counts."""


PREAMBLE = """
import os, signal, time

def timed(function, *args):
    start = time.perf_counter()
    notebook_launcher(function, args, num_processes=2)
    return time.perf_counter() - start
"""

AGAIN = 5
"""Further launches in one kernel whose median is "again"."""

THINKING_S = 3.0
"""Between the import and the first launch: somebody types the next cell."""


def trivial(kernel: Kernel, door: Door) -> Measures:
    """A function that does nothing: first launch 3 s after the import, then again."""
    kernel.run(f"{door.imports}\n{PREAMBLE}\ndef nothing():\n    pass")
    time.sleep(THINKING_S)
    first = _seconds(kernel, "timed(nothing)")
    again = [_seconds(kernel, "timed(nothing)") for _ in range(AGAIN)]
    return {"trivial function, first": first, "trivial function, again": statistics.median(again)}


def with_libraries(kernel: Kernel, door: Door) -> Measures:
    """A function that uses scikit-learn and pandas, which the notebook has imported."""
    kernel.run(
        f"{door.imports}\n{PREAMBLE}\n"
        "import pandas as pd\n"
        "from sklearn.linear_model import LinearRegression\n"
        "def fit():\n"
        "    frame = pd.DataFrame({'x': [0.0, 1.0, 2.0], 'y': [1.0, 3.0, 5.0]})\n"
        "    assert abs(LinearRegression().fit(frame[['x']], frame['y']).coef_[0] - 2) < 1e-6",
    )
    time.sleep(THINKING_S)
    first = _seconds(kernel, "timed(fit)")
    again = [_seconds(kernel, "timed(fit)") for _ in range(AGAIN)]
    return {
        "with sklearn and pandas, first": first,
        "with sklearn and pandas, again": statistics.median(again),
    }


def failure(kernel: Kernel, door: Door) -> Measures:
    """Rank 1 raises while rank 0 waits for it: from the raise to the exception in the notebook."""
    kernel.run(
        f"{door.imports}\n{PREAMBLE}\n"
        "def fail():\n"
        "    accelerator = Accelerator(cpu=True)\n"
        "    accelerator.wait_for_everyone()\n"
        "    if accelerator.process_index == 1:\n"
        "        time.sleep(0.3)  # until rank 0 waits below\n"
        "        with open('raised', 'w') as file:\n"
        "            file.write(repr(time.time()))\n"
        "        raise KeyError('the cause')\n"
        "    accelerator.wait_for_everyone()\n"
        "def until_exception():\n"
        "    try:\n"
        "        notebook_launcher(fail, num_processes=2)\n"
        "    except BaseException:\n"
        "        return time.time() - float(open('raised').read())\n"
        "    raise SystemExit('no exception')"
    )
    time.sleep(THINKING_S)
    return {"a rank raises, the other waits": _seconds(kernel, "until_exception()")}


def interrupt(kernel: Kernel, door: Door) -> Measures:
    """Workers that ignore SIGINT: from the stop button to a free kernel without workers."""
    kernel.run(
        f"{door.imports}\n{PREAMBLE}\n"
        "def stubborn():\n"
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "    with open('up-' + os.environ['RANK'], 'w'):\n"
        "        pass\n"
        "    while True:\n"
        "        time.sleep(1)"
    )
    time.sleep(THINKING_S)
    cell = kernel.submit("notebook_launcher(stubborn, num_processes=2)")
    _wait_for_files(kernel, cell, "up-0", "up-1")
    start = time.monotonic()
    kernel.interrupt()
    cell.wait(120)
    kernel.wait_until_alone(120)
    return {"interrupt, SIGINT ignored": time.monotonic() - start}


SCENARIOS: dict[str, Scenario] = {
    "trivial": Scenario(
        trivial,
        {"trivial function, first": Goal(ratio=1.0), "trivial function, again": Goal(ratio=0.5)},
        repeats=5,
    ),
    "libraries": Scenario(
        with_libraries,
        {"with sklearn and pandas, first": Goal(), "with sklearn and pandas, again": Goal(ratio=1.0)},
        repeats=3,
    ),
    "failure": Scenario(failure, {"a rank raises, the other waits": Goal(seconds=0.5)}, repeats=3),
    "interrupt": Scenario(interrupt, {"interrupt, SIGINT ignored": Goal(seconds=5.0)}, repeats=1),
}


def _seconds(kernel: Kernel, expression: str) -> float:
    result = kernel.run(f"print('seconds:', {expression})", timeout=120)
    return float(result.stdout.rsplit("seconds:", 1)[1])


def _wait_for_files(kernel: Kernel, cell: Cell, *names: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not all((kernel.cwd / name).exists() for name in names):
        if cell.done or time.monotonic() > deadline:
            raise TimeoutError(f"the workers did not come up; output: {cell.outputs}")
        time.sleep(0.02)
