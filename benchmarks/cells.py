"""Round trip of a trivial cell, and of a trivial function, on two workers that are up already."""

from __future__ import annotations

from benchmarks.measures import IPYPARALLEL, OURS, Door, Goal, Readings, Scenario, by, number_from
from tests.kernel import Kernel

TRIPS = 100
"""Of each kind in one kernel; the median counts."""

_OPENINGS = {
    OURS.package: (
        "import nbaccel\n"
        "%load_ext nbaccel\n"
        "workers = nbaccel.session(2, cpu=True)\n"
        "def cell():\n"
        "    shell.run_cell_magic('accelerate', '', 'x = 1')\n"
        "def call():\n"
        "    workers.run(nothing)\n"
        "def stop():\n"
        "    workers.stop()\n"
    ),
    IPYPARALLEL.package: (
        "import ipyparallel\n"
        "cluster = ipyparallel.Cluster(n=2, log_level=40)\n"
        "workers = cluster.start_and_connect_sync(activate=True)\n"
        "view = workers[:]\n"
        "def cell():\n"
        "    shell.run_cell_magic('px', '', 'x = 1')\n"
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

CELL, CALL = "round trip of a cell", "round trip of a function"


def round_trips(kernel: Kernel, door: Door) -> Readings:
    """A cell that assigns a number and a function that does nothing, timed in the kernel."""
    kernel.run(f"{_OPENINGS[door.package]}\n{_CELL}", timeout=120)
    try:
        values = {CELL: number_from(kernel, "median(cell)"), CALL: number_from(kernel, "median(call)")}
    finally:
        kernel.run("stop()")
        kernel.wait_until_alone(30)  # some helpers of a cluster outlive its end a little
    return by(door, values)


SCENARIOS = {
    "cells": Scenario(
        round_trips,
        {measure: Goal(ratio=1, seconds=0.005, against=IPYPARALLEL.package) for measure in (CELL, CALL)},
        repeats=3,
        doors=(OURS, IPYPARALLEL),
    )
}
