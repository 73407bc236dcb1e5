"""Run the scenarios with both doors, in turns, and print a table with ratios."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.scenarios import SCENARIOS, Door, Goal, Measures, Scenario
from tests import leaks
from tests.kernel import Kernel

OURS, THEIRS = Door("nbaccel"), Door("accelerate")
Samples = dict[str, dict[str, list[float]]]
"""measure -> package -> seconds of each run"""


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    leaks.mark_this_run()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # two ranks on the CPU, on any machine
    chosen = {name: SCENARIOS[name] for name in options.scenarios or SCENARIOS}
    samples: Samples = {}
    for name, scenario in chosen.items():
        samples |= sample(name, scenario, options.repeats or scenario.repeats)
    goals = {measure: goal for scenario in chosen.values() for measure, goal in scenario.goals.items()}
    print(header())
    print(table(samples, goals))
    if options.json:
        options.json.write_text(json.dumps({"environment": header(), "seconds": samples}, indent=2) + "\n")
    missed = [measure for measure, goal in goals.items() if not met(samples[measure], goal)]
    return 1 if options.check and missed else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all")
    parser.add_argument("--repeats", type=int, help="runs of each scenario with each package")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.scenarios) - set(SCENARIOS))
    if unknown:
        parser.error(f"unknown scenario {', '.join(unknown)}; choose of {', '.join(SCENARIOS)}")
    return options


def sample(name: str, scenario: Scenario, repeats: int) -> Samples:
    """Run a scenario `repeats` times with each package; who goes first changes every time."""
    samples: Samples = defaultdict(lambda: defaultdict(list))
    for repeat in range(repeats):
        doors = (OURS, THEIRS) if repeat % 2 == 0 else (THEIRS, OURS)
        for door in doors:
            print(f"{name} {repeat + 1}/{repeats}: {door.package}", file=sys.stderr, flush=True)
            for measure, seconds in run_once(scenario, door).items():
                samples[measure][door.package].append(seconds)
    return {measure: dict(by_package) for measure, by_package in samples.items()}


def run_once(scenario: Scenario, door: Door) -> Measures:
    """One run in a fresh kernel; a run that fails or hangs counts as infinitely long, and says so."""
    try:
        with Kernel() as kernel:
            return scenario.run(kernel, door)
    except (AssertionError, TimeoutError) as error:
        print(f"\n{door.package} failed: {str(error)[-500:]}", file=sys.stderr)
        return dict.fromkeys(scenario.goals, math.inf)


def met(by_package: dict[str, list[float]], goal: Goal) -> bool:
    ours, theirs = (statistics.median(by_package[door.package]) for door in (OURS, THEIRS))
    return goal.is_met(ours, theirs)


def table(samples: Samples, goals: dict[str, Goal]) -> str:
    """Medians, their ratio and the goal, as a Markdown table."""
    rows = [["2 ranks, CPU; median, s", OURS.package, THEIRS.package, "ratio", "goal", ""]]
    for measure, by_package in samples.items():
        ours, theirs = (statistics.median(by_package[door.package]) for door in (OURS, THEIRS))
        ratio = ours / theirs if math.isfinite(ours) else math.inf
        goal = goals[measure]
        verdict = "" if goal == Goal() else "met" if goal.is_met(ours, theirs) else "MISSED"
        rows.append([measure, f"{ours:.3f}", f"{theirs:.3f}", f"{ratio:.2f} x", str(goal), verdict])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def header() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "ipykernel", "accelerate"))
    return f"Python {platform.python_version()}, {packages}, {os.cpu_count()} cores, {platform.system()}"


if __name__ == "__main__":
    sys.exit(main())
