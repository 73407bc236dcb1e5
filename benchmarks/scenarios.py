"""Launches: each scenario runs a notebook's cells in a kernel of its own, once for each door.

It must do the same for all doors: nothing here may know which one it has. All scenarios, those of the other
modules too, stand in `SCENARIOS`.
"""

from __future__ import annotations

import statistics
import time

from benchmarks import cells, data, training
from benchmarks.measures import OURS, TORCHRUNX, Door, Goal, Readings, Scenario, by, number_from
from benchmarks.waiting import THINKING_S, wait_for_files
from tests.kernel import Kernel

PREAMBLE = """
import os, signal, time

def timed(function, ranks=2):
    start = time.perf_counter()
    notebook_launcher(function, num_processes=ranks)
    return time.perf_counter() - start
"""

AGAIN = 5
"""Further launches in one kernel whose median is "again"."""

MORE_RANKS = (4, 8, 16)
ONCE_MORE = "trivial function, second launch"


def trivial(kernel: Kernel, door: Door) -> Readings:
    """A function that does nothing: first launch 3 s after the import, then again."""
    kernel.run(f"{door.opening}\n{PREAMBLE}\ndef nothing():\n    pass")
    time.sleep(THINKING_S)
    first = number_from(kernel, "timed(nothing)")
    again = [number_from(kernel, "timed(nothing)") for _ in range(AGAIN)]
    return by(door, {"trivial function, first": first, "trivial function, again": statistics.median(again)})


def once_more(kernel: Kernel, door: Door) -> Readings:
    """A function that does nothing, launched twice; the second one counts."""
    kernel.run(f"{door.opening}\n{PREAMBLE}\ndef nothing():\n    pass")
    time.sleep(THINKING_S)
    number_from(kernel, "timed(nothing)")
    return by(door, {ONCE_MORE: number_from(kernel, "timed(nothing)")})


def more_ranks(kernel: Kernel, door: Door) -> Readings:
    """The same function on more ranks, the first launch with that many left out."""
    kernel.run(f"{door.opening}\n{PREAMBLE}\ndef nothing():\n    pass")
    time.sleep(THINKING_S)
    values = {}
    for ranks in MORE_RANKS:
        taken = [number_from(kernel, f"timed(nothing, {ranks})") for _ in range(1 + AGAIN)]
        values[trivial_on(ranks)] = statistics.median(taken[1:])
    return by(door, values)


def trivial_on(ranks: int) -> str:
    return f"trivial function, again, n = {ranks}"


def with_libraries(kernel: Kernel, door: Door) -> Readings:
    """A function that uses scikit-learn and pandas, which the notebook has imported."""
    kernel.run(
        f"{door.opening}\n{PREAMBLE}\n"
        "import pandas as pd\n"
        "from sklearn.linear_model import LinearRegression\n"
        "def fit():\n"
        "    frame = pd.DataFrame({'x': [0.0, 1.0, 2.0], 'y': [1.0, 3.0, 5.0]})\n"
        "    assert abs(LinearRegression().fit(frame[['x']], frame['y']).coef_[0] - 2) < 1e-6",
    )
    time.sleep(THINKING_S)
    first = number_from(kernel, "timed(fit)")
    again = [number_from(kernel, "timed(fit)") for _ in range(AGAIN)]
    return by(
        door,
        {
            "with sklearn and pandas, first": first,
            "with sklearn and pandas, again": statistics.median(again),
        },
    )


def failure(kernel: Kernel, door: Door) -> Readings:
    """Rank 1 raises while rank 0 waits for it: from the raise to the exception in the notebook."""
    kernel.run(
        f"{door.opening}\n{PREAMBLE}\n"
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
    return by(door, {"a rank raises, the other waits": number_from(kernel, "until_exception()")})


def interrupt(kernel: Kernel, door: Door) -> Readings:
    """Workers that ignore SIGINT: from the stop button to a free kernel without workers."""
    kernel.run(
        f"{door.opening}\n{PREAMBLE}\n"
        "def stubborn():\n"
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "    with open('up-' + os.environ['RANK'], 'w'):\n"
        "        pass\n"
        "    while True:\n"
        "        time.sleep(1)"
    )
    time.sleep(THINKING_S)
    cell = kernel.submit("notebook_launcher(stubborn, num_processes=2)")
    wait_for_files(kernel, cell, "up-0", "up-1")
    start = time.monotonic()
    kernel.interrupt()
    cell.wait(120)
    kernel.wait_until_alone(120)
    return by(door, {"interrupt, SIGINT ignored": time.monotonic() - start})


SCENARIOS: dict[str, Scenario] = (
    {
        "trivial": Scenario(
            trivial,
            {"trivial function, first": Goal(ratio=1.0), "trivial function, again": Goal(ratio=0.5)},
            repeats=5,
        ),
        # Apart, and once: its workers import torch each time, which takes seconds a launch.
        "torchrunx": Scenario(
            once_more,
            {ONCE_MORE: Goal(against=TORCHRUNX.package)},
            repeats=1,
            doors=(OURS, TORCHRUNX),
        ),
        "ranks": Scenario(
            more_ranks, {trivial_on(ranks): Goal(ratio=0.5) for ranks in MORE_RANKS}, repeats=3
        ),
        "libraries": Scenario(
            with_libraries,
            {"with sklearn and pandas, first": Goal(), "with sklearn and pandas, again": Goal(ratio=1.0)},
            repeats=3,
        ),
        "failure": Scenario(failure, {"a rank raises, the other waits": Goal(seconds=0.5)}, repeats=3),
        "interrupt": Scenario(interrupt, {"interrupt, SIGINT ignored": Goal(seconds=5.0)}, repeats=1),
    }
    | data.SCENARIOS
    | cells.SCENARIOS
    | training.SCENARIOS
)
