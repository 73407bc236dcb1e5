"""The form on a TPU, which is a stand-in and is never opened."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nbaccel.launch.devices import discovery
from nbaccel.launch.devices.discovery import Discovery
from nbaccel.widgets.form import Form
from tests.launch.fake_tpu import V5E, FakeTpuHost, FakeTpuMachine
from tests.widgets.forms import note, put, view_of

NewForm = Callable[..., Form]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTpuHost:
    host = FakeTpuHost(tmp_path / "host")
    monkeypatch.setattr(discovery, "_discovery", Discovery(FakeTpuMachine(host)))
    monkeypatch.setitem(sys.modules, "torch_xla", None)  # an import of it fails
    return host


def test_cores_are_shown_with_the_launch_that_they_make(new_form: NewForm, host: FakeTpuHost) -> None:
    host.plug_in(V5E, 4)
    form = new_form(mixed_precision="bf16")
    view = view_of(form)
    assert [box.description for box in view.boxes] == [f"tpu:{n}  TPU v5e" for n in range(4)]
    assert view.outlook.text == "Would run: 4 processes on tpu v5e-4, bf16."
    put(form, "num_processes", "1")
    assert view.outlook.text == "Would run: 1 process on tpu v5e-4, bf16."
    put(form, "num_processes", "3")
    assert "it can be 1 or 4" in note(form, "num_processes")


def test_a_core_that_is_unticked_says_that_cores_cannot_be_picked(
    new_form: NewForm, host: FakeTpuHost
) -> None:
    host.plug_in(V5E, 4)
    view = view_of(new_form())
    view.boxes[1].value = False
    assert "the cores of a TPU can't be picked" in view.run_on.note.text


def test_why_a_tpu_cannot_be_used_is_shown(new_form: NewForm, host: FakeTpuHost) -> None:
    host.packages = {}
    host.plug_in(V5E, 1)
    view = view_of(new_form())
    assert not view.boxes
    assert "a TPU v5e-1 is here, but neither torch_xla nor torch_tpu is installed" in view.run_on.note.text
