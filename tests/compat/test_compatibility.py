"""Every public name of the incumbent is here, or left out with a reason that the documentation gives."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version

import pytest

from nbaccel.left_out import LEFT_OUT, LEFT_OUT_MODULES
from tests.compat import surface


def test_nothing_is_missing_without_a_reason() -> None:
    rows, counts = surface.compare()
    assert [name for name, state, _ in rows if state == "missing"] == []
    assert counts["here"] > 370


def test_the_accelerator_takes_every_argument() -> None:
    rows, _ = surface.compare()
    lacking = [row for row in rows if row[0].split(".")[0] == "Accelerator" and row[2].startswith("without")]
    assert lacking == []


def test_the_page_in_the_documentation_is_up_to_date() -> None:
    assert surface.TABLE.read_text() == surface.table(), "run: python -m tests.compat.surface"


def test_the_snapshot_is_that_of_the_installed_version() -> None:
    snapshot = json.loads(surface.SNAPSHOT.read_text())
    try:
        installed = version("accelerate")
    except PackageNotFoundError:
        pytest.skip("the incumbent isn't installed")
    if installed != snapshot["version"]:
        pytest.skip(f"the snapshot is of {snapshot['version']}, {installed} is installed")
    taken = surface.take_snapshot()
    # Optional packages add names; what is in the snapshot must be there.
    for suffix, names in snapshot["modules"].items():
        assert set(names) <= set(taken["modules"][suffix]), suffix
    assert snapshot["attributes"] == taken["attributes"]
    for name, members in snapshot["classes"].items():
        assert members == taken["classes"][name]


def test_no_name_is_listed_as_left_out_though_it_is_here() -> None:
    rows, _ = surface.compare()
    left_out = {name for names in LEFT_OUT.values() for name in names.split()}
    modules = json.loads(surface.SNAPSHOT.read_text())["modules"]
    absent = [names for suffix, names in modules.items() if surface.below(suffix) in LEFT_OUT_MODULES]
    of_modules = {name for names in absent for name in names}
    found = {name for name, state, _ in rows if state == "left out"}
    assert left_out == found - (of_modules - left_out)
