"""The form in a real kernel: what a front end receives and sends, and what the next cells do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel import ROOT, Kernel, Output

WIDGET = "application/vnd.jupyter.widget-view+json"


class Page:
    """What a front end does with a form: it sets values and clicks, by messages to the widgets' models."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def value(self, expression: str) -> Any:
        return eval(self.kernel.run(f"print('=>', repr({expression}))").stdout.rsplit("=> ", 1)[1])

    def set(self, control: str, value: str) -> None:
        self._send(control, {"method": "update", "state": {"value": value}, "buffer_paths": []})

    def choose(self, control: str, value: str) -> None:
        offered = self.value(f"[v for _, v in form.view.{control}.options]")
        state = {"index": offered.index(value)}
        self._send(control, {"method": "update", "state": state, "buffer_paths": []})

    def click(self, button: str) -> None:
        self._send(button, {"method": "custom", "content": {"event": "click"}})

    def _send(self, control: str, data: dict[str, Any]) -> None:
        content = {"comm_id": self.value(f"form.view.{control}.model_id"), "data": data}
        self.kernel._session.send(self.kernel._shell, "comm_msg", content)


@pytest.fixture
def page(kernel: Kernel, tmp_path: Path) -> Iterator[Page]:
    kernel.run(
        "import os, threading, time\n"
        f"os.environ['XDG_CONFIG_HOME'] = {str(tmp_path)!r}\n"
        "import nbaccel\n"
        "%load_ext nbaccel"
    )
    yield Page(kernel)
    kernel.run(
        "nbaccel.configure().reset()\n"
        "nbaccel.widgets.form._current.close()\n"
        "del os.environ['XDG_CONFIG_HOME']"
    )


def forms(outputs: list[Output]) -> list[dict[str, Any]]:
    """The displays of forms among the outputs."""
    return [output.data for output in outputs if WIDGET in output.data]


def test_it_is_shown_once_wherever_it_stands_in_the_cell(page: Page) -> None:
    shown = page.kernel.run("form = nbaccel.configure(cpu=True)\nprint('below')")
    (data,) = forms(shown.outputs)
    assert data[WIDGET]["model_id"] == page.value("form.view.root.model_id")
    assert "nbaccel would run 1 process on cpu" in data["text/plain"]
    assert "<td>num_processes</td>" in data["text/html"]
    assert shown.stdout == "below\n"
    as_value = page.kernel.run("nbaccel.configure()")
    assert [len(forms(as_value.outputs)), len(as_value.outputs)] == [1, 1]
    again = page.kernel.run("form = nbaccel.configure()\nform")
    assert len(forms(again.outputs)) == 1
    later = page.kernel.run("form")
    assert len(forms(later.outputs)) == 1
    assert page.value("sum(t.name == 'nbaccel-form-watch' for t in threading.enumerate())") == 1
    assert page.value("all(t.daemon for t in threading.enumerate() if t.name.startswith('nbaccel-form'))")


def test_B166_what_is_clicked_in_the_form_of_the_magic_holds_for_the_next_launch(page: Page) -> None:
    shown = page.kernel.run("%accelerate config")
    assert len(forms(shown.outputs)) == 1
    page.kernel.run("form = nbaccel.widgets.form._current")
    page.choose("run_on.control", "cpu")
    page.set("rows['num_processes'].control", "2")
    page.choose("rows['mixed_precision'].control", "bf16")
    page.choose("rows['output'].control", "none")
    page.click("apply_button")
    assert page.value("form.view.status.text") == "Applied: 2 processes on cpu, bf16."
    run = page.kernel.run(
        "def look():\n"
        "    from nbaccel import Accelerator\n"
        "    accelerator = Accelerator()\n"
        "    print('not to be seen')\n"
        "    return accelerator.mixed_precision, accelerator.num_processes, str(accelerator.device)\n"
        "value = nbaccel.notebook_launcher(look)"
    )
    assert page.value("value") == ("bf16", 2, "cpu")
    assert run.stdout == "nbaccel: 2 processes on cpu, bf16\n"


def test_B168_an_error_reaches_the_page_and_not_a_cell(page: Page) -> None:
    page.kernel.run("form = nbaccel.configure(num_processes=2)")
    page.set("rows['num_processes'].control", "many")
    page.click("apply_button")
    looked = page.kernel.run("print(form.view.status.text)")
    assert looked.stdout == "num_processes='many' is not a whole number; write e.g. 2\n"
    assert looked.stderr == ""
    assert page.value("nbaccel.config.session_values()") == {"num_processes": 2}
    bad = page.kernel.run("nbaccel.configure(num_processes='many')", may_fail=True)
    assert bad.error.ename == "ConfigError"
    assert forms(bad.outputs) == []


def test_B046_cells_go_on_while_the_self_test_runs_and_see_nothing_of_it(page: Page) -> None:
    page.kernel.run("form = nbaccel.configure(num_processes=1, cpu=True)")
    page.click("test_button")
    assert page.value("form.is_testing")
    waits = page.kernel.run(
        "deadline = time.monotonic() + 60\n"
        "while len(form.report) < 3 and time.monotonic() < deadline:\n"
        "    time.sleep(0.01)\n"
        "print('mine')"
    )
    assert (waits.stdout, waits.stderr) == ("mine\n", "")
    assert page.value("form.report[2]").startswith("start: ok")
    page.click("test_button")
    assert page.value("form.wait_for_test(30)")
    assert page.value("form.view.status.text") == "Self test: stopped."


def test_cells_on_workers_go_by_it_too(page: Page) -> None:
    page.kernel.run(
        'form = nbaccel.configure(cpu=True, num_processes=2, output="main", start_method="spawn")'
    )
    page.kernel.run("%%accelerate\nimport os\nprint('rank', os.environ['RANK'])\nparent = os.getppid()")
    shown = page.kernel.run("%%accelerate\nprint('rank', os.environ['RANK'])")
    try:
        assert shown.stdout == "rank 0\n"
        assert page.value("parent == os.getpid()"), "spawned by the kernel itself"
        page.set("rows['num_processes'].control", "1")
        said = page.value("form.view.outlook.text")
        assert "Workers are there already: 2 processes on cpu." in said
        on = page.kernel.run("%%accelerate --output all\nprint('still', os.environ['WORLD_SIZE'])")
        assert sorted(on.stdout.splitlines()) == ["[rank 0] still 2", "[rank 1] still 2"]
        without_a_click = page.kernel.run("form = nbaccel.configure(num_processes=3)")
        assert "nbaccel: Workers are there already: 2 processes on cpu." in without_a_click.stdout
    finally:
        page.kernel.run("%accelerate stop")


def test_in_a_worker_it_is_refused(page: Page) -> None:
    failed = page.kernel.run(
        "nbaccel.notebook_launcher(lambda: nbaccel.configure(num_processes=2), cpu=True)", may_fail=True
    )
    assert failed.error.ename == "RuntimeError"
    assert "configured by its launch" in failed.error.evalue


def test_B169_without_ipywidgets_the_cell_shows_a_table(page: Page) -> None:
    page.kernel.run(
        "import sys\nkept = sys.modules.pop('ipywidgets', None)\nsys.modules['ipywidgets'] = None"
    )
    try:
        shown = page.kernel.run("nbaccel.configure(num_processes=2)")
    finally:
        page.kernel.run(
            "del sys.modules['ipywidgets']\nif kept is not None: sys.modules['ipywidgets'] = kept"
        )
    assert forms(shown.outputs) == []
    assert shown.stdout.startswith("nbaccel would run 2 processes on cpu\n")
    assert "(with the package ipywidgets in the notebook's environment this is a form)" in shown.stdout
    assert shown.stdout.count("num_processes  ") == 1


def test_B169_a_terminal_shows_a_table_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "IPython",
            "--no-banner",
            "--colors=NoColor",
            f"--ipython-dir={tmp_path}",
            "-c",
            "import nbaccel; nbaccel.configure(num_processes=2)",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout.count("nbaccel would run 2 processes on cpu") == 1
    assert "nbaccel.configure(num_processes=2, mixed_precision=" in done.stdout
    assert "(in a notebook this is a form)" in done.stdout


def test_the_end_of_the_kernel_ends_the_self_test(fresh_kernel: Kernel) -> None:
    fresh_kernel.run("import nbaccel\nform = nbaccel.configure(num_processes=2, cpu=True)\nform.test()")
    fresh_kernel.run(
        "import time\n"
        "deadline = time.monotonic() + 60\n"
        "while len(form.report) < 2 and time.monotonic() < deadline:\n"
        "    time.sleep(0.01)\n"
        "assert form.is_testing"
    )
    fresh_kernel.kill()
    fresh_kernel.wait_until_alone(15, zygote_may_stay=False)
