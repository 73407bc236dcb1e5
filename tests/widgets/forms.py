"""Forms in this process: their controls are Python objects, and no page shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbaccel import config
from nbaccel.launch.devices import discovery
from nbaccel.widgets import form as form_module
from nbaccel.widgets.form import Form
from nbaccel.widgets.form_view import FormView
from tests.launch.fake_machine import Gpu, cuda_machine

HOPPER = (9, 0)
AMPERE = (8, 0)
TURING = (7, 5)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing is configured; the folder where the user's config file would lie."""
    for each in config.SETTINGS.values():
        monkeypatch.delenv(each.variable, raising=False)
    monkeypatch.delenv("NBACCEL_CONFIG_FILE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield tmp_path / "config" / "nbaccel"
    config.set_session_values({})


@pytest.fixture
def new_form(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Form]]:
    """``configure`` as in a notebook; what it opened is closed again."""
    made: list[Form] = []
    monkeypatch.setattr(form_module, "_why_no_widgets", lambda: "")
    monkeypatch.setattr(form_module, "_current", None)

    def make(**settings: object) -> Form:
        made.append(form_module.configure(**settings))
        made[-1]._make_view()
        assert made[-1].view is not None, made[-1]._why_text
        return made[-1]

    yield make
    for form in made:
        form.stop_test(wait_s=30)
        form.close()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Gpu]]:
    """A machine with GPUs of the given compute capabilities."""

    def have(*capabilities: tuple[int, int]) -> list[Gpu]:
        found = [
            Gpu(f"GPU-{index}aaa-bbbb", capability=capability)
            for index, capability in enumerate(capabilities)
        ]
        monkeypatch.setattr(discovery, "_discovery", discovery.Discovery(cuda_machine(*found)))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return found

    return have


def view_of(form: Form) -> FormView:
    """Its controls."""
    assert form.view is not None
    return form.view


def put(form: Form, name: str, value: object) -> None:
    """What a user does to the control of a setting."""
    view_of(form).rows[name].control.value = value


def note(form: Form, name: str) -> str:
    """What stands next to the control of a setting."""
    return view_of(form).rows[name].note.text
