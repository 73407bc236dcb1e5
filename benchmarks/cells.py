"""Cells on workers that are up already: a trivial one on 2 and on 16 of them, and one that prints much."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

from benchmarks.measures import IPYPARALLEL, OURS, Door, Goal, Readings, Scenario, by, number_from
from tests.kernel import Kernel, Result

TRIPS = 100
"""Of each kind in one kernel; the median counts."""

PRINTED = 100_000

_OPENINGS = {
    OURS.package: (
        "import nbaccel\n"
        "%load_ext nbaccel\n"
        "workers = nbaccel.session(COUNT, cpu=True)\n"
        "def cell(text='x = 1'):\n"
        "    shell.run_cell_magic('accelerate', '', text)\n"
        "def call():\n"
        "    workers.run(nothing)\n"
        "def stop():\n"
        "    workers.stop()\n"
    ),
    IPYPARALLEL.package: (
        "import ipyparallel\n"
        "cluster = ipyparallel.Cluster(n=COUNT, log_level=40)\n"
        "workers = cluster.start_and_connect_sync(activate=True)\n"
        "view = workers[:]\n"
        "def cell(text='x = 1'):\n"
        "    shell.run_cell_magic('px', '', text)\n"
        "def call():\n"
        "    view.apply_sync(nothing)\n"
        "def stop():\n"
        "    workers.close()\n"
        "    cluster.stop_cluster_sync()\n"
    ),
}

_CELL = f"""
import statistics, time

shell = get_ipython()

def nothing():
    pass

def median(function):
    taken = []
    for trip in range({TRIPS} + 3):  # the first few start the workers and fill caches
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[3:])
"""

CELL, CALL, MANY = "round trip of a cell", "round trip of a function", "round trip of a cell, n = 16"
LINES = f"a cell that prints {PRINTED} lines a worker"


def round_trips(kernel: Kernel, door: Door) -> Readings:
    """A cell that assigns a number and a function that does nothing, timed in the kernel."""
    with _workers(kernel, door, 2):
        values = {CELL: number_from(kernel, "median(cell)"), CALL: number_from(kernel, "median(call)")}
    return by(door, values)


def many_workers(kernel: Kernel, door: Door) -> Readings:
    """The same cell on more workers than most machines have GPUs."""
    with _workers(kernel, door, 16):
        return by(door, {MANY: number_from(kernel, "median(cell)")})


def printing(kernel: Kernel, door: Door) -> Readings:
    """From the start of the cell until its last line is in the notebook; the second such cell counts."""
    with _workers(kernel, door, 2):
        for _ in range(2):
            start = time.perf_counter()
            told = kernel.run(f"cell('for i in range({PRINTED}): print(i)')", timeout=300)
            taken = time.perf_counter() - start
            if len(_numbers(told)) != 2 * PRINTED:
                taken = math.nan  # lines were lost, so that the time tells nothing
    return by(door, {LINES: taken})


def _numbers(told: Result) -> set[tuple[str, int]]:
    """Who printed what. A label stands before each line, or before the first one of a display."""
    found = set()
    for text in (told.stdout, *(output.text for output in told.outputs if "display" in output.kind)):
        label = ""
        for line in text.splitlines():
            head, bracket, tail = line.rpartition("]")
            label = head if bracket else label
            if tail.strip().isdigit():
                found.add((label, int(tail)))
    return found


@contextlib.contextmanager
def _workers(kernel: Kernel, door: Door, count: int) -> Iterator[None]:
    kernel.run(f"COUNT = {count}\n{_OPENINGS[door.package]}\n{_CELL}", timeout=120)
    try:
        yield
    finally:
        kernel.run("stop()", timeout=60)
        kernel.wait_until_alone(30)  # some helpers of a cluster outlive its end a little


_AGAINST = IPYPARALLEL.package
SCENARIOS = {
    "cells": Scenario(
        round_trips,
        {measure: Goal(ratio=1, seconds=0.005, against=_AGAINST) for measure in (CELL, CALL)},
        repeats=3,
        doors=(OURS, IPYPARALLEL),
    ),
    "many-workers": Scenario(
        many_workers, {MANY: Goal(ratio=1, against=_AGAINST)}, repeats=3, doors=(OURS, IPYPARALLEL)
    ),
    "printing": Scenario(
        printing, {LINES: Goal(ratio=1, against=_AGAINST)}, repeats=3, doors=(OURS, IPYPARALLEL)
    ),
}
