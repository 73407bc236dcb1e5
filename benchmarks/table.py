"""Samples to rows: medians, their ratios, and whether a goal is met."""

from __future__ import annotations

import math
import statistics

from benchmarks.measures import OURS, Goal

Samples = dict[str, dict[str, list[float]]]
"""measure -> package or yardstick -> value of each run"""


def met(by_column: dict[str, list[float]], goal: Goal) -> bool:
    """Whether the medians reach the goal; what we didn't measure of ourselves doesn't."""
    medians = _medians(by_column)
    return goal.is_met(medians.get(OURS.package, math.inf), medians.get(goal.against))


def table(samples: Samples, goals: dict[str, Goal]) -> str:
    """A Markdown table: a row for each measure and each one that it is compared with."""
    rows = [["CPU, medians; 2 ranks if not said", OURS.package, "against", "", "ratio", "goal", ""]]
    for measure, by_column in samples.items():
        rows += _rows(measure, by_column, goals[measure])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def _rows(measure: str, by_column: dict[str, list[float]], goal: Goal) -> list[list[str]]:
    medians = _medians(by_column)
    ours = medians.pop(OURS.package, math.inf)
    # The one that the goal is about stands first, also when it couldn't be measured.
    others = sorted({goal.against, *medians}, key=lambda other: other != goal.against)
    rows: list[list[str]] = []
    for other in others:
        theirs = medians.get(other)
        if theirs is None and goal.ratio is None and len(others) > 1:
            continue
        rows.append(
            [
                "" if rows else measure,
                "" if rows else shown(ours, goal.unit),
                other,
                "-" if theirs is None else shown(theirs, goal.unit),
                _ratio(ours, theirs),
                "" if rows else str(goal),
                "" if rows else verdict(goal, ours, medians.get(goal.against)),
            ]
        )
    return rows


def verdict(goal: Goal, ours: float, theirs: float | None) -> str:
    """One word: met, MISSED, or that there was nothing to compare with."""
    if goal.asks_nothing:
        return ""
    if goal.is_missed(ours, theirs):
        return "MISSED"
    return "met" if goal.is_met(ours, theirs) else "unmeasured"


def shown(value: float, unit: str) -> str:
    """A value in the unit that suits its size."""
    if not math.isfinite(value):
        return "failed"
    if unit != "s":
        return f"{value:.0f} {unit}"
    if value >= 0.1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"


def _ratio(ours: float, theirs: float | None) -> str:
    if not Goal.can_compare(theirs) or not math.isfinite(ours):
        return "-"
    return f"{ours / theirs:.2f} x"


def _medians(by_column: dict[str, list[float]]) -> dict[str, float]:
    return {column: statistics.median(values) for column, values in by_column.items()}
