"""A large array on its way to the workers and back, against one write of the same bytes in the same kernel.

Memory is the sum of the proportional set sizes of the kernel and all its processes at the moment when every
rank has read the whole array, less the same sum with an array of a few bytes.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import psutil

from benchmarks.measures import (
    ACCELERATE,
    DATA,
    ONE_WRITE,
    OURS,
    REWRITE,
    Door,
    Goal,
    Readings,
    Scenario,
    number_from,
)
from benchmarks.waiting import THINKING_S, wait_for_files
from tests.kernel import Kernel

SIZE = 10**9
"""Bytes."""

TURNS = 3
"""Launches and writes in one kernel, in turns, whose medians count."""

RANKS = (2, 8)

_CELL = f"""
import os, time
import numpy as np

array = np.ones({SIZE} // 8)
few = np.ones(8)

def write(file):
    rest = memoryview(array).cast("B")
    start = time.monotonic()
    while rest:
        rest = rest[os.write(file, rest):]
    return time.monotonic() - start

def one_write():
    global again
    file = os.memfd_create("one-write")
    seconds = write(file)
    os.lseek(file, 0, os.SEEK_SET)
    again = write(file)
    os.close(file)
    return seconds

def nothing():
    pass

def look():
    assert array[0] == array[-1] == 1

def timed(function, ranks):
    start = time.monotonic()
    notebook_launcher(function, num_processes=ranks)
    return time.monotonic() - start

def read(values):
    assert values.sum() == values.size
    open("read-" + os.environ["RANK"], "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)

def give():
    values = np.ones({SIZE} // 8) if os.environ["RANK"] == "0" else None
    return values, time.monotonic()

def way_back():
    values, made = notebook_launcher(give, num_processes=2)
    assert values[0] == values[-1] == 1
    return time.monotonic() - made
"""


def capture(kernel: Kernel, door: Door) -> Readings:
    """A function that uses a large array of the notebook, for several numbers of ranks."""
    _prepare(kernel, door)
    readings: Readings = {}
    first = number_from(kernel, "timed(look, 2)")
    for ranks in RANKS:
        kernel.run(f"notebook_launcher(nothing, num_processes={ranks})")
        readings[capture_time(ranks)] = _in_turns(kernel, door, f"timed(look, {ranks})")
        growth = _memory(kernel, "array", ranks) - _memory(kernel, "few", ranks)
        readings[capture_memory(ranks)] = {door.package: growth / 1e6, DATA: SIZE / 1e6}
    readings[CAPTURE_FIRST] = {**readings[capture_time(2)], door.package: first}
    if door is not OURS:  # the yardsticks of one kernel are enough
        readings = {measure: {door.package: by[door.package]} for measure, by in readings.items()}
    return readings


def give_back(kernel: Kernel, door: Door) -> Readings:
    """Rank 0 returns a large array: from its return statement to the value in the notebook."""
    _prepare(kernel, door)
    return {RETURN: _in_turns(kernel, door, "way_back()")}


def _prepare(kernel: Kernel, door: Door) -> None:
    kernel.run(f"{door.opening}\n{_CELL}")
    time.sleep(THINKING_S)
    kernel.run("notebook_launcher(nothing, num_processes=2)")


def _in_turns(kernel: Kernel, door: Door, expression: str) -> dict[str, float]:
    """Medians of the expression and of the two ways to write; who goes first changes every time."""
    taken: dict[str, list[float]] = {door.package: [], ONE_WRITE: [], REWRITE: []}
    for turn in range(TURNS):
        for column in (door.package, ONE_WRITE) if turn % 2 == 0 else (ONE_WRITE, door.package):
            if column == ONE_WRITE:
                taken[ONE_WRITE].append(number_from(kernel, "one_write()", timeout=300))
                taken[REWRITE].append(number_from(kernel, "again"))
            else:
                taken[column].append(number_from(kernel, expression, timeout=300))
    return {column: statistics.median(values) for column, values in taken.items()}


def _memory(kernel: Kernel, name: str, ranks: int) -> int:
    """Bytes that the kernel and its processes hold while all ranks have read the array of that name."""
    cell = kernel.submit(f"notebook_launcher(read, ({name},), num_processes={ranks})")
    flags = [f"read-{rank}" for rank in range(ranks)]
    wait_for_files(kernel, cell, *flags, timeout=300)
    held = sum(_proportional_size(pid) for pid in (kernel.pid, *(p.pid for p in kernel.children())))
    (kernel.cwd / "go").touch()
    cell.wait(120, may_fail=False)
    for flag in (*flags, "go"):
        (kernel.cwd / flag).unlink()
    return held


def _proportional_size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        if psutil.pid_exists(pid):
            raise
        return 0  # a short-lived process of the package, gone in between
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def capture_time(ranks: int) -> str:
    return f"capture of 1 GB, again, n = {ranks}"


def capture_memory(ranks: int) -> str:
    return f"memory for 1 GB, n = {ranks}"


CAPTURE_FIRST = "capture of 1 GB, first, n = 2"
RETURN = "return of 1 GB from rank 0"

SCENARIOS = {
    "capture": Scenario(
        capture,
        {CAPTURE_FIRST: Goal(ratio=1.3, against=ONE_WRITE)}
        | {capture_time(ranks): Goal(ratio=1.3, against=ONE_WRITE) for ranks in RANKS}
        | {capture_memory(ranks): Goal(ratio=1.2, against=DATA, unit="MB") for ranks in RANKS},
        repeats=3,
        doors=(OURS, ACCELERATE),
    ),
    # The incumbent drops what a function returns, torchrunx sends it through a socket of its agent.
    "return": Scenario(give_back, {RETURN: Goal(ratio=2, against=ONE_WRITE)}, repeats=3, doors=(OURS,)),
}
