"""The form: its controls, what they do, and what it says. In this process, without a page."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import nbaccel
from nbaccel import config
from nbaccel.config import SETTINGS
from nbaccel.errors import ConfigError
from nbaccel.launch import current
from nbaccel.launch.request.resolve import resolve_spec
from nbaccel.launch.session import Session
from nbaccel.widgets.form import Form
from nbaccel.widgets.form_view import MAIN
from tests.kernel import ROOT
from tests.launch.fake_machine import GIB, Gpu
from tests.widgets.forms import AMPERE, HOPPER, TURING, note, put, view_of

NewForm = Callable[..., Form]
Gpus = Callable[..., list[Gpu]]


def test_every_setting_has_a_control(new_form: NewForm) -> None:
    view = view_of(new_form())
    assert set(view.rows) | {"cpu", "devices"} == set(SETTINGS)
    assert set(MAIN) < set(view.rows)
    for name, row in view.rows.items():
        assert row.control.description, name
        assert f"nbaccel-{name}" in row.control._dom_classes
        for choice in SETTINGS[name].choices:
            offered = [value for _, value in row.control.options]
            assert choice in offered or (name, choice) == ("mixed_precision", "fp8")
    rest = view.root.children[list(view.root.children).index(view.more) + 1]
    assert {row.widget for name, row in view.rows.items() if name not in MAIN} == set(rest.children)
    assert rest.layout.display == "none", "the rest is folded"
    view.more.value = True
    assert rest.layout.display is None
    view.more.value = False
    assert rest.layout.display == "none"


def test_apply_holds_for_this_kernel_and_reset_takes_it_back(new_form: NewForm) -> None:
    form = new_form()
    put(form, "num_processes", "2")
    put(form, "mixed_precision", "bf16")
    put(form, "gradient_accumulation_steps", "4")
    assert config.session_values() == {}, "nothing holds before Apply"
    view_of(form).apply_button.click()
    assert config.session_values() == {
        "num_processes": 2,
        "mixed_precision": "bf16",
        "gradient_accumulation_steps": 4,
    }
    assert "Applied: 2 processes on cpu, bf16" in view_of(form).status.text
    spec = resolve_spec()
    assert (spec.num_processes, spec.mixed_precision, spec.gradient_accumulation_steps) == (2, "bf16", 4)
    view_of(form).reset_button.click()
    assert config.session_values() == {}
    assert view_of(form).rows["num_processes"].control.value == ""


def test_what_equals_environment_and_file_is_not_said_by_the_form(
    new_form: NewForm, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBACCEL_NUM_PROCESSES", "3")
    form = new_form()
    assert view_of(form).rows["num_processes"].control.value == "3"
    assert note(form, "num_processes") == "from NBACCEL_NUM_PROCESSES"
    put(form, "output", "main")
    form.apply()
    assert config.session_values() == {"output": "main"}
    put(form, "num_processes", "2")
    form.apply()
    put(form, "num_processes", "3")
    form.apply()
    assert config.resolve()["num_processes"] == 3


def test_B168_an_error_is_said_next_to_what_is_wrong_and_nothing_is_applied(new_form: NewForm) -> None:
    form = new_form(num_processes=2)
    put(form, "num_processes", "0")
    put(form, "timeout", "soon")
    view = view_of(form)
    assert "too small" in note(form, "num_processes")
    assert "not a number of seconds" in note(form, "timeout")
    assert view.code["launcher"].value == "", "there is no line of code for it"
    for button in (view.apply_button, view.save_button, view.test_button):
        view.status.say("")
        button.click()
        assert "num_processes='0' is too small; it must be at least 1" in view.status.text
        assert "nbaccel-wrong" in view.status.widget.value
    for method in (form.apply, form.save, form.test):
        with pytest.raises(ValueError, match="num_processes='0' is too small"):
            method()
    assert config.session_values() == {"num_processes": 2}
    assert not form.choice.target().exists()
    put(form, "num_processes", "")
    put(form, "timeout", "60")
    view.apply_button.click()
    assert config.session_values() == {"timeout": 60}


def test_B168_any_error_of_a_callback_is_said_in_the_form(
    new_form: NewForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = new_form()

    def fail() -> None:
        raise KeyError("<b>surprise</b>")

    monkeypatch.setattr(form.choice, "look_again", fail)
    view_of(form).apply_button.click()
    assert view_of(form).status.text == "KeyError: '<b>surprise</b>'"
    assert "&lt;b&gt;" in view_of(form).status.widget.value


def test_save_writes_the_file_and_keeps_what_is_written_there(new_form: NewForm, home: Path) -> None:
    home.mkdir(parents=True)
    path = home / "config.yaml"
    path.write_text("# the lab's machine\nnum_processes: 4\ntimeout: 60  # one minute\nfuture: 1\n")
    form = new_form()
    put(form, "num_processes", "2")
    put(form, "mixed_precision", "bf16")
    view_of(form).save_button.click()
    assert f"Saved to {path}" in view_of(form).status.text
    assert path.read_text() == (
        "# the lab's machine\nnum_processes: 2\ntimeout: 60  # one minute\nfuture: 1\nmixed_precision: bf16\n"
    )
    assert config.session_values() == {}, "the file says it now"
    assert config.resolve()["mixed_precision"] == "bf16"
    put(form, "mixed_precision", "no")
    form.save()
    assert "mixed_precision" not in path.read_text()


def test_save_leaves_variables_to_the_environment(
    new_form: NewForm, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBACCEL_NUM_PROCESSES", "3")
    form = new_form()
    put(form, "output", "main")
    form.save()
    assert (home / "config.yaml").read_text() == "version: 1\noutput: main\n"
    put(form, "num_processes", "2")
    form.save()
    assert "num_processes: 2" in (home / "config.yaml").read_text()
    assert config.resolve()["num_processes"] == 2, "what the form shows holds, over the variable too"


def test_a_file_that_was_named_and_is_not_there_is_made(
    new_form: NewForm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBACCEL_CONFIG_FILE", str(tmp_path / "mine.yaml"))
    form = new_form()
    assert "there is no config file" in view_of(form).outlook.text
    view_of(form).apply_button.click()
    assert "there is no config file" in view_of(form).status.text
    put(form, "num_processes", "2")
    view_of(form).save_button.click()
    assert (tmp_path / "mine.yaml").read_text() == "version: 1\nnum_processes: 2\n"
    assert view_of(form).outlook.text == "Would run: 2 processes on cpu."


def test_a_broken_file_is_named_and_left_alone(new_form: NewForm, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "config.yaml").write_text("num_processes: many\n")
    form = new_form()
    assert "config.yaml, line 1: num_processes='many' is not a whole number" in view_of(form).outlook.text
    view_of(form).save_button.click()
    assert "line 1" in view_of(form).status.text
    assert (home / "config.yaml").read_text() == "num_processes: many\n"


def test_arguments_hold_at_once(new_form: NewForm) -> None:
    form = new_form(num_processes=2, mixed_precision="BF16", timeout=None)
    assert config.session_values() == {"num_processes": 2, "mixed_precision": "bf16"}
    assert view_of(form).rows["num_processes"].control.value == "2"
    assert view_of(form).rows["mixed_precision"].control.value == "bf16"
    assert form.values["num_processes"] == 2
    again = new_form(output="main")
    assert config.session_values() == {"num_processes": 2, "mixed_precision": "bf16", "output": "main"}
    assert view_of(again).rows["num_processes"].control.value == "2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_proceses": 2}, "did you mean 'num_processes'"),
        ({"num_processes": 0}, "num_processes=0 is too small"),
        ({"mixed_precision": "fp12"}, "choose one of no, fp16, bf16, fp8"),
        ({"cpu": True, "devices": [0]}, "contradict each other"),
        ({"num_processes": 2, "devices": [0]}, "contradict each other"),
        ({"mixed_precision": "fp8"}, "isn't enabled here: it needs an NVIDIA GPU"),
        ({"devices": [0]}, "no accelerator is visible"),
        ({"node_rank": 2}, "number of machines"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(
    new_form: NewForm, settings: dict[str, object], message: str
) -> None:
    before = new_form(output="main")
    with pytest.raises(ConfigError, match=message):
        nbaccel.configure(**settings)
    assert config.session_values() == {"output": "main"}
    assert view_of(before).root.children, "the form that is there stays"


def test_later_arguments_replace_earlier_ones(new_form: NewForm, gpus: Gpus) -> None:
    gpus(AMPERE, AMPERE, AMPERE)
    new_form(devices=[0, 2])
    assert resolve_spec().devices == (0, 2)
    new_form(num_processes=1)
    assert resolve_spec().devices == (0,)
    new_form(cpu=True)
    assert resolve_spec().device_type == "cpu"
    new_form(devices=[1])
    assert resolve_spec().devices == (1,)
    new_form(devices="all")
    assert resolve_spec().devices == (0, 1, 2)


def test_help_and_completion_know_the_settings() -> None:
    assert set(inspect.signature(nbaccel.configure).parameters) == set(SETTINGS)


def test_devices_with_name_memory_and_load(new_form: NewForm, gpus: Gpus) -> None:
    found = gpus(AMPERE, AMPERE)
    found[1].used, found[1].load = 20 * GIB, 35
    view = view_of(new_form())
    assert [box.description for box in view.boxes] == [f"cuda:{n}  NVIDIA A100-SXM4-80GB" for n in (0, 1)]
    assert [words.text for words in view.usage] == [
        "1.0 of 80.0 GiB in use, load 0%",
        "20.0 of 80.0 GiB in use, load 35%",
    ]
    assert "GiB in use" in view.cpu.text
    found[0].used = 40 * GIB
    view.look()
    assert view.usage[0].text.startswith("40.0 of 80.0")


def test_devices_are_chosen_by_boxes(new_form: NewForm, gpus: Gpus) -> None:
    gpus(AMPERE, AMPERE, AMPERE)
    form = new_form()
    view = view_of(form)
    assert view.outlook.text == "Would run: 3 processes on cuda:0-2."
    assert [box.value for box in view.boxes] == [True, True, True]
    view.boxes[1].value = False
    assert view.run_on.control.value == "chosen"
    assert view.outlook.text == "Would run: 2 processes on cuda:0, 2."
    view.apply_button.click()
    assert config.session_values() == {"devices": (0, 2)}
    put(form, "num_processes", "3")
    assert "contradict" in note(form, "num_processes")
    view.run_on.control.value = "all"
    assert view.outlook.text == "Would run: 3 processes on cuda:0-2."
    put(form, "num_processes", "4")
    assert "but 3 cuda devices are visible" in note(form, "num_processes")
    view.run_on.control.value = "cpu"
    assert view.outlook.text == "Would run: 4 processes on cpu."
    view.apply_button.click()
    assert config.session_values() == {"cpu": True, "num_processes": 4}
    view.run_on.control.value = "idle"
    put(form, "num_processes", "2")
    assert view.outlook.text == "Would run: 2 processes on the least used of 3 cuda devices."
    view.run_on.control.value = "chosen"
    for box in view.boxes:
        box.value = False
    assert "names no devices" in view.run_on.note.text


def test_devices_of_the_file_give_way_to_boxes(new_form: NewForm, gpus: Gpus, home: Path) -> None:
    gpus(AMPERE, AMPERE, AMPERE, AMPERE)
    home.mkdir(parents=True)
    (home / "config.yaml").write_text("num_processes: 4\n")
    form = new_form()
    view_of(form).boxes[3].value = False
    view_of(form).boxes[0].value = False
    assert "Would run: 2 processes on cuda:1-2." in view_of(form).outlook.text
    assert "num_processes=4" in view_of(form).outlook.text, "what gives way is named"
    form.save()
    assert (home / "config.yaml").read_text() == "devices: [1, 2]\n"


def test_devices_that_are_not_here_are_an_error_in_the_form(new_form: NewForm, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "config.yaml").write_text("devices: [0, 1]\n")
    form = new_form()
    assert "no accelerator is visible" in view_of(form).run_on.note.text
    view_of(form).run_on.control.value = "cpu"
    view_of(form).apply_button.click()
    assert "Applied: 1 process on cpu" in view_of(form).status.text


def test_only_what_the_hardware_has_is_offered(new_form: NewForm, gpus: Gpus) -> None:
    gpus(HOPPER, TURING)
    form = new_form()
    view = view_of(form)

    def offered() -> list[str]:
        return [value for _, value in view.rows["mixed_precision"].control.options]

    assert offered() == ["no", "fp16"]
    assert "cuda:1 (NVIDIA A100-SXM4-80GB) has compute capability 7.5: torch only emulates it" in note(
        form, "mixed_precision"
    )
    view.boxes[1].value = False
    assert offered()[:3] == ["no", "fp16", "bf16"]
    put(form, "mixed_precision", "bf16")
    view.apply_button.click()
    assert resolve_spec().mixed_precision == "bf16"
    view.boxes[1].value = True
    assert "bf16 isn't enabled here" in note(form, "mixed_precision")
    view.apply_button.click()
    assert "bf16 isn't enabled here" in view.status.text
    assert resolve_spec().devices == (0,), "nothing of it was applied"


def test_a_running_session_is_told_of(new_form: NewForm, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Session(resolve_spec(num_processes=2, cpu=True))
    monkeypatch.setattr(current, "_current", running)
    form = new_form(num_processes=2)
    assert "--fresh" not in view_of(form).outlook.text
    put(form, "num_processes", "3")
    said = view_of(form).outlook.text
    assert (
        "Workers are there already: 2 processes on cpu. The next %%accelerate cell goes on with them" in said
    )
    form.apply()
    assert current.session() is running, "as the form said"
    assert current.session(fresh=True).spec.num_processes == 3


def test_it_looks_at_the_machine_only_while_it_is_shown(new_form: NewForm) -> None:
    form = new_form()
    view = view_of(form)
    assert not view.is_watching
    view.begin()
    view.begin()
    assert view.is_watching
    status = view.status.widget
    other = new_form(num_processes=2)
    assert not view.is_watching
    assert view.root.children == (status,), "one form is there at a time"
    assert form.view is None
    view_of(other).begin()
    other.close()
    other.close()


def test_a_line_to_copy_stays_what_it_is(new_form: NewForm) -> None:
    form = new_form(num_processes=2)
    field = view_of(form).code["launcher"]
    assert field.value == "notebook_launcher(train, num_processes=2)"
    field.value = "something typed"
    assert field.value == "notebook_launcher(train, num_processes=2)"


def test_B169_the_same_in_text_and_html(new_form: NewForm) -> None:
    form = new_form(num_processes=2, log_dir="<logs>")
    bundle = form._repr_mimebundle_()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == view_of(form).root.model_id
    for text in (bundle["text/plain"], repr(form)):
        assert "nbaccel would run 2 processes on cpu" in text
        assert all(name in text for name in SETTINGS)
        assert "nbaccel.configure()" in text, "where it comes from"
        assert 'log_dir="<logs>"' in text
    assert "&lt;logs&gt;" in bundle["text/html"]
    assert all(f"<td>{name}</td>" in bundle["text/html"] for name in SETTINGS)


def test_B169_without_ipywidgets_the_settings_are_printed(home: Path) -> None:
    code = (
        "import sys; sys.modules['ipywidgets'] = None\n"
        "import nbaccel\n"
        "form = nbaccel.configure(num_processes=2)\n"
        "print(form.view, form.values['num_processes'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert "nbaccel would run 2 processes on cpu" in done.stdout
    assert "num_processes                2" in done.stdout
    assert done.stdout.endswith("None 2\n")
    assert done.stderr == ""
