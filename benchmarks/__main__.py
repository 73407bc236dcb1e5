"""Run the scenarios with each package, in turns, and print a table with ratios."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.measures import OURS, Door, Goal, Readings, Scenario, by
from benchmarks.scenarios import SCENARIOS
from benchmarks.table import Samples, met, table
from tests import leaks
from tests.kernel import Kernel


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        print(listing())
        return 0
    leaks.mark_this_run()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # ranks on the CPU, on any machine
    goals = options.goals
    samples: Samples = {}
    for name, scenario in SCENARIOS.items():
        if goals.keys() & scenario.goals.keys():
            samples |= sample(name, scenario, options.repeats or scenario.repeats)
    samples = {measure: samples[measure] for measure in goals}
    print(header())
    print(table(samples, goals))
    if options.json:
        options.json.write_text(json.dumps({"environment": header(), "samples": samples}, indent=2) + "\n")
    missed = [measure for measure, goal in goals.items() if not met(samples[measure], goal)]
    return 1 if options.check and missed else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; `goals` has the rows that they pick, each with its goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="only rows whose name has TEXT in it; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="show scenarios and rows, measure nothing")
    parser.add_argument("--repeats", type=int, help="runs of each scenario with each package")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.scenarios) - set(SCENARIOS))
    if unknown:
        parser.error(f"unknown scenario {', '.join(unknown)}; choose of {', '.join(SCENARIOS)}")
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats {options.repeats} measures nothing; give 1 or more")
    options.goals = rows(options.scenarios, options.only)
    if not options.goals:
        parser.error(f"no row has {' or '.join(options.only)} in its name; --list shows the rows")
    return options


def rows(scenarios: list[str], only: list[str] | None) -> dict[str, Goal]:
    """The measures of the scenarios (none named: all) whose name has one of the texts in it."""
    return {
        measure: goal
        for name in scenarios or SCENARIOS
        for measure, goal in SCENARIOS[name].goals.items()
        if only is None or any(text.lower() in measure.lower() for text in only)
    }


def listing() -> str:
    return "\n".join(
        f"{name}:\n" + "\n".join(f"    {measure}  ({goal})" for measure, goal in scenario.goals.items())
        for name, scenario in SCENARIOS.items()
    )


def sample(name: str, scenario: Scenario, repeats: int) -> Samples:
    """Run a scenario `repeats` times with each package; the order turns round every time."""
    samples: Samples = {measure: defaultdict(list) for measure in scenario.goals}
    doors = [door for door in scenario.doors if door.is_there]
    for door in scenario.doors:
        if door not in doors:
            print(f"{name}: {door.package} isn't installed and is left out", file=sys.stderr)
    for repeat in range(repeats):
        for door in doors if repeat % 2 == 0 else reversed(doors):
            print(f"{name} {repeat + 1}/{repeats}: {door.package}", file=sys.stderr, flush=True)
            for measure, values in run_once(scenario, door).items():
                for column, value in values.items():
                    samples[measure][column].append(value)
    return {measure: dict(by_column) for measure, by_column in samples.items()}


def run_once(scenario: Scenario, door: Door) -> Readings:
    """One run in a fresh kernel; a run that fails or hangs counts as infinitely long, and says so."""
    try:
        with Kernel() as kernel:
            return scenario.run(kernel, door)
    except (AssertionError, TimeoutError) as error:
        print(f"\n{door.package} failed: {str(error)[-500:]}", file=sys.stderr)
        return by(door, dict.fromkeys(scenario.goals, math.inf))


def header() -> str:
    """What the numbers belong to."""
    doors = {door.package: door for scenario in SCENARIOS.values() for door in scenario.doors}
    peers = [name for name, door in doors.items() if door.is_there and door != OURS]
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "ipykernel", *peers))
    return f"Python {platform.python_version()}, {packages}, {os.cpu_count()} cores, {platform.system()}"


if __name__ == "__main__":
    sys.exit(main())
