"""The benchmark's arithmetic, verdicts and choice of rows; the measuring itself is `make bench`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.measures import ACCELERATE, ONE_WRITE, OURS, Door, Goal, Readings, Scenario, by
from benchmarks.scenarios import SCENARIOS
from benchmarks.table import Samples, shown, table, verdict
from tests.kernel import Kernel


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "said"),
    [
        (Goal(ratio=0.5), 0.5, 1.0, "met"),
        (Goal(ratio=0.5), 0.51, 1.0, "MISSED"),
        (Goal(seconds=5), 4.9, None, "met"),
        (Goal(seconds=5), 5.1, 50.0, "MISSED"),
        (Goal(ratio=1, seconds=5), 4.0, 3.0, "MISSED"),
        (Goal(ratio=1), math.inf, 1.0, "MISSED"),
        (Goal(seconds=1), math.inf, None, "MISSED"),
        (Goal(ratio=1), 1.0, None, "unmeasured"),
        (Goal(ratio=1), 1.0, math.inf, "unmeasured"),
        (Goal(ratio=1, seconds=5), 6.0, math.inf, "MISSED"),
        (Goal(), 9.0, 1.0, ""),
    ],
)
def test_a_goal_is_met_missed_or_could_not_be_compared(
    goal: Goal, ours: float, theirs: float | None, said: str
) -> None:
    assert verdict(goal, ours, theirs) == said
    assert goal.is_met(ours, theirs) is (said in {"met", ""})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_table_shows_medians_ratios_and_the_verdict() -> None:
    samples: Samples = {
        "quick": {"nbaccel": [0.3, 0.1, 0.2], "accelerate": [0.4, 0.4, 9.0]},
        "slow": {"nbaccel": [2.0], "accelerate": [1.0]},
    }
    lines = table(samples, {"quick": Goal(ratio=0.5), "slow": Goal(ratio=1)}).splitlines()
    assert cells(lines[2]) == [
        "quick", "0.20 s", "accelerate", "0.40 s", "0.50 x", "<= 0.5 x accelerate", "met",
    ]  # fmt: skip
    assert cells(lines[3])[-1] == "MISSED"


def test_the_one_that_the_goal_is_about_stands_first_and_the_others_below() -> None:
    samples: Samples = {"sent": {"nbaccel": [1.2], "accelerate": [0.3], ONE_WRITE: [1.0]}}
    lines = table(samples, {"sent": Goal(ratio=1.3, against=ONE_WRITE)}).splitlines()
    assert cells(lines[2])[2:5] == [ONE_WRITE, "1.00 s", "1.20 x"]
    assert cells(lines[3]) == ["", "", "accelerate", "0.30 s", "4.00 x", "", ""]


def test_a_package_that_is_missing_or_failed_is_no_yardstick() -> None:
    goals = {"absent": Goal(ratio=1), "broken": Goal(ratio=1)}
    samples: Samples = {
        "absent": {"nbaccel": [1.0]},
        "broken": {"nbaccel": [1.0], "accelerate": [math.inf]},
    }
    lines = table(samples, goals).splitlines()
    assert cells(lines[2])[2:] == ["accelerate", "-", "-", "<= 1 x accelerate", "unmeasured"]
    assert cells(lines[3])[2:] == ["accelerate", "failed", "-", "<= 1 x accelerate", "unmeasured"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12.345, "s", "12.35 s"),
        (0.1, "s", "0.10 s"),
        (0.0312, "s", "31.2 ms"),
        (42e-6, "s", "42 us"),
        (1000.4, "MB", "1000 MB"),
        (math.inf, "s", "failed"),
    ],
)
def test_values_in_the_unit_that_suits_them(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_all_packages_take_turns_in_going_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def run_once(scenario: Scenario, door: Door) -> Readings:
        order.append(door.package)
        return {"measure": {door.package: 1.0}}

    monkeypatch.setattr(bench, "run_once", run_once)
    # Packages that are there in any environment of the tests.
    doors = (OURS, Door("torch"), Door("no_such_package"))
    samples = bench.sample("any", Scenario(none, {"measure": Goal()}, repeats=3, doors=doors), 3)
    assert order == ["nbaccel", "torch", "torch", "nbaccel", "nbaccel", "torch"]
    assert samples == {"measure": {"nbaccel": [1.0] * 3, "torch": [1.0] * 3}}


def none(kernel: Kernel, door: Door) -> Readings:
    raise AssertionError("not to be run")


def test_what_is_not_installed_is_left_out_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "run_once", lambda _, door: by(door, {"measure": 1.0}))
    scenario = Scenario(none, {"measure": Goal()}, repeats=1, doors=(OURS, Door("no_such_package")))
    assert bench.sample("any", scenario, 1) == {"measure": {"nbaccel": [1.0]}}
    assert "no_such_package isn't installed" in capsys.readouterr().err


def test_a_run_that_fails_is_infinitely_slow_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(kernel: Kernel, door: Door) -> Readings:
        kernel.run("raise KeyError('the reason')")
        return {}

    readings = bench.run_once(Scenario(fails, {"measure": Goal()}, repeats=1), OURS)
    assert readings == {"measure": {"nbaccel": math.inf}}
    assert "the reason" in capsys.readouterr().err


def test_rows_are_picked_by_scenario_and_by_text() -> None:
    assert set(bench.rows([], None)) == {m for scenario in SCENARIOS.values() for m in scenario.goals}
    assert list(bench.rows(["trivial"], ["FIRST"])) == ["trivial function, first"]
    assert list(bench.rows([], ["n = 16", "return of"])) == [
        "trivial function, again, n = 16", "return of 1 GB from rank 0", "round trip of a cell, n = 16",
    ]  # fmt: skip


def test_only_the_scenarios_of_picked_rows_run_and_only_these_rows_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = []

    def sample(name: str, scenario: Scenario, repeats: int) -> Samples:
        run.append((name, repeats))
        return {measure: {OURS.package: [2.0], ACCELERATE.package: [1.0]} for measure in scenario.goals}

    monkeypatch.setattr(bench, "sample", sample)
    monkeypatch.setattr(bench, "header", lambda: "this machine")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(bench.leaks, "mark_this_run", lambda: "")
    file = tmp_path / "samples.json"
    arguments = ["--only", "function, again", "--repeats", "2", "--json", str(file)]
    assert bench.main(arguments) == 0  # times alone fail nothing
    assert bench.main([*arguments, "--check"]) == 1
    assert run == [("trivial", 2), ("ranks", 2)] * 2
    shown_rows = capsys.readouterr().out
    assert "trivial function, again, n = 8" in shown_rows
    assert "trivial function, first" not in shown_rows
    saved = json.loads(file.read_text())
    assert saved["environment"] == "this machine"
    assert saved["samples"]["trivial function, again"] == {"nbaccel": [2.0], "accelerate": [1.0]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-scenario"], "unknown scenario no-such-scenario"),
        (["--only", "no such row"], "no row has no such row in its name"),
        (["--repeats", "0"], "--repeats 0 measures nothing"),
    ],
)
def test_what_picks_nothing_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        bench.main(arguments)
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


def test_the_list_names_every_row_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--list"]) == 0
    names = [line.strip().split("  (")[0] for line in capsys.readouterr().out.splitlines() if line[0] == " "]
    assert sorted(names) == sorted({m for scenario in SCENARIOS.values() for m in scenario.goals})
    assert all(scenario.goals and scenario.repeats >= 1 for scenario in SCENARIOS.values())
