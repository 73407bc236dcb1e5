"""Each known report of a fault has a test that is named after it.

The ids are those of public reports on notebook launching, data loading, precision, checkpoints,
configuration and interactive workers, that nbaccel's behaviour was measured against.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPORTS = {
    "launching": "001-010 012-017 019 021-025 027-031",
    "pickling": "032 035-041",
    "output": "042 045-052",
    "errors": "053-059 061-063",
    "interrupts": "064 066-068 070 072 073",
    "data loading": "074 075 077-081 083-085 087 088 090-093",
    "metrics": "094-098 100 102 106 108",
    "precision": "109-116",
    "accumulation": "119-121 123 125 126",
    "schedules": "127 128",
    "checkpoints": "131-134 136 138 139 141 143 144",
    "memory": "145 147-150",
    "configuration": "151-154 156-160 162",
    "magics": "163-167",
    "widgets": "168-170",
    "TPU": "171-176",
    "several machines": "177-180",
    "security": "181 182",
    "values and trackers": "184-186",
}
"""Subject -> numbers of its reports."""

OPEN: dict[int, str] = {}
"""Reports without a test yet, and what is missing."""


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _named() -> set[int]:
    """The numbers in names of tests."""
    found: set[int] = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE):
            found |= {int(number) for number in re.findall(r"_B(\d{3})(?=_)", name)}
    return found


@pytest.mark.parametrize("subject", REPORTS)
def test_every_report_has_a_test_of_its_name(subject: str) -> None:
    missing = set(_numbers(REPORTS[subject])) - _named() - set(OPEN)
    assert not missing, f"no test is named after {sorted(missing)}"


def test_what_counts_as_open_is_open_and_no_test_names_an_unknown_report() -> None:
    known = {number for numbers in REPORTS.values() for number in _numbers(numbers)}
    assert not set(OPEN) & _named()
    assert _named() <= known
