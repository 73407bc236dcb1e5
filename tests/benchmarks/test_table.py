"""The benchmark's arithmetic and verdicts; the measuring itself is `make bench`."""

from __future__ import annotations

import math

import pytest

from benchmarks import __main__ as bench
from benchmarks.scenarios import SCENARIOS, Door, Goal, Scenario
from tests.kernel import Kernel


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "met"),
    [
        (Goal(ratio=0.5), 0.5, 1.0, True),
        (Goal(ratio=0.5), 0.51, 1.0, False),
        (Goal(seconds=5), 4.9, 0.1, True),
        (Goal(seconds=5), 5.1, 50.0, False),
        (Goal(ratio=1, seconds=5), 4.0, 3.0, False),
        (Goal(ratio=1), math.inf, 1.0, False),
        (Goal(), 9.0, 1.0, True),
    ],
)
def test_a_goal_is_met_or_not(goal: Goal, ours: float, theirs: float, met: bool) -> None:
    assert goal.is_met(ours, theirs) is met


def test_the_table_shows_medians_their_ratio_and_the_verdict() -> None:
    samples = {
        "quick": {"nbaccel": [0.3, 0.1, 0.2], "accelerate": [0.4, 0.4, 9.0]},
        "slow": {"nbaccel": [2.0], "accelerate": [1.0]},
    }
    table = bench.table(samples, {"quick": Goal(ratio=0.5), "slow": Goal(ratio=1)}).splitlines()
    assert [cell.strip() for cell in table[2].split("|")[1:-1]] == [
        "quick", "0.200", "0.400", "0.50 x", "<= 0.5 x", "met",
    ]  # fmt: skip
    assert table[3].split("|")[-2].strip() == "MISSED"


def test_both_packages_take_turns_in_going_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def run_once(scenario: Scenario, door: Door) -> dict[str, float]:
        order.append(door.package)
        return {"measure": 1.0}

    monkeypatch.setattr(bench, "run_once", run_once)
    samples = bench.sample("any", SCENARIOS["trivial"], 3)
    assert order == ["nbaccel", "accelerate", "accelerate", "nbaccel", "nbaccel", "accelerate"]
    assert samples == {"measure": {"nbaccel": [1.0] * 3, "accelerate": [1.0] * 3}}


def test_a_run_that_fails_is_infinitely_slow_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(kernel: Kernel, door: Door) -> dict[str, float]:
        kernel.run("raise KeyError('the reason')")
        return {}

    measures = bench.run_once(Scenario(fails, {"measure": Goal()}, repeats=1), Door("nbaccel"))
    assert measures == {"measure": math.inf}
    assert "the reason" in capsys.readouterr().err


def test_every_measure_has_a_goal_entry_and_unknown_scenarios_are_refused() -> None:
    assert all(scenario.goals and scenario.repeats >= 1 for scenario in SCENARIOS.values())
    with pytest.raises(SystemExit) as refused:
        bench.main(["no-such-scenario"])
    assert refused.value.code == 2
