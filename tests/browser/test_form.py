"""The form of ``nbaccel.configure()`` under a person's hands: keys, clicks, what is said, what holds then."""

from __future__ import annotations

import pytest
import yaml

from tests.browser.window import DARK

SHOW = "import nbaccel\nnbaccel.configure()"
LAUNCH = """\
from nbaccel import notebook_launcher

def look():
    from nbaccel import Accelerator
    accelerator = Accelerator()
    return accelerator.num_processes, accelerator.mixed_precision, accelerator.gradient_accumulation_steps

notebook_launcher(look)
"""
ENVIRONMENT = "%load_ext nbaccel\n%accelerate config"


class FormControls:
    """The controls of the form below a cell, by the names of the settings."""

    def __init__(self, notebook, index=0):
        self.page = notebook.page
        self.window = notebook.window
        self.root = notebook.outputs(index, ".nbaccel-form")
        self.root.wait_for(timeout=30_000)

    def text(self, setting):
        return self.root.locator(f".nbaccel-{setting} input")

    def choice(self, setting):
        return self.root.locator(f".nbaccel-{setting} select")

    def press(self, button):
        """A click with the mouse."""
        self.root.locator(f"button.nbaccel-{button}").click()

    def said(self, where="status"):
        return self.root.locator(f".nbaccel-{where}").inner_text()

    def wait_until_said(self, text, where="status", timeout=15):
        self.window.wait_for(
            lambda: text in self.said(where), timeout, f"{text!r} as {where}: {self.said(where)!r}"
        )

    def line(self, what):
        return self.root.locator(f".nbaccel-code-{what} input").input_value()


def test_B151_clicks_and_keys_in_the_form_hold_for_the_next_launch(open_notebook, server):
    notebook = open_notebook(SHOW, LAUNCH, LAUNCH)
    notebook.run(0)
    form = FormControls(notebook)

    # By mouse.
    form.choice("run_on").select_option(label="the CPU")
    form.text("num_processes").click()
    # From there on by keyboard only: Tab goes through the controls as they are seen.
    notebook.page.keyboard.type("2")
    notebook.page.keyboard.press("Tab")
    notebook.page.locator(".nbaccel-mixed_precision select:focus").wait_for()
    # Space opens the list; without it JupyterLab takes arrows and letters for its own commands.
    notebook.page.keyboard.press("Space")
    notebook.page.keyboard.type("bf16")
    notebook.page.keyboard.press("Enter")
    notebook.page.keyboard.press("Tab")
    notebook.page.locator(".nbaccel-gradient_accumulation_steps input:focus").wait_for()
    notebook.page.keyboard.press("Control+a")
    notebook.page.keyboard.type("4")
    notebook.page.keyboard.press("Enter")
    form.wait_until_said("2 processes on cpu, bf16", "outlook")
    assert "num_processes=2" in form.line("launcher")
    assert "-n 2" in form.line("cell")
    form.press("apply")
    form.wait_until_said("Applied")
    notebook.window.screenshot("form-applied")
    notebook.run(1)
    assert "nbaccel: 2 processes on cpu, bf16" in notebook.text(1)
    assert "(2, 'bf16', 4)" in notebook.text(1)
    assert not (server.config_home / "nbaccel").exists(), "Apply is for this kernel only"

    form.press("reset")
    form.wait_until_said("1 process", "outlook")
    notebook.run(2)
    assert "(1, 'no', 1)" in notebook.text(2)


def test_B168_what_is_wrong_is_said_in_the_form_and_nothing_is_applied(open_notebook, server):
    notebook = open_notebook(SHOW, LAUNCH)
    notebook.run(0)
    form = FormControls(notebook)
    form.text("num_processes").fill("many")
    form.text("num_processes").press("Enter")
    form.wait_until_said("many", "row:has(.nbaccel-num_processes)")
    form.press("apply")
    form.wait_until_said("many")
    notebook.window.screenshot("form-wrong")
    form.press("save")
    form.wait_until_said("many")
    assert not (server.config_home / "nbaccel").exists()
    notebook.run(1)
    assert "(1, 'no', 1)" in notebook.text(1)

    form.text("num_processes").fill("2")
    form.text("num_processes").press("Enter")
    form.choice("run_on").select_option(label="the CPU")
    form.press("apply")
    form.wait_until_said("Applied")


def test_B166_save_writes_the_file_that_later_kernels_read(open_notebook, server):
    """The form that the magic shows does the same as the function's."""
    notebook = open_notebook(ENVIRONMENT, LAUNCH)
    notebook.run(0)
    form = FormControls(notebook)
    form.choice("run_on").select_option(label="the CPU")
    form.text("num_processes").fill("2")
    form.text("num_processes").press("Enter")
    form.press("save")
    form.wait_until_said("Saved")
    [path] = (server.config_home / "nbaccel").iterdir()
    saved = yaml.safe_load(path.read_text())
    assert saved["num_processes"] == 2
    notebook.restart()
    notebook.window.wait_until_idle()
    notebook.run(1)
    assert "(2, 'no', 1)" in notebook.text(1)
    path.unlink()
    path.parent.rmdir()


@pytest.mark.timeout(180)
def test_the_self_test_runs_in_the_form_while_the_kernel_works(open_notebook):
    notebook = open_notebook(SHOW, "6 * 7", theme=DARK)
    notebook.run(0)
    form = FormControls(notebook)
    form.choice("run_on").select_option(label="the CPU")
    form.text("num_processes").fill("2")
    form.text("num_processes").press("Enter")
    form.press("test")
    form.wait_until_said("Self test")
    assert notebook.run(1).strip() == "42"
    notebook.window.screenshot("form-testing-dark")
    form.wait_until_said("stages passed", timeout=90)
    notebook.window.screenshot("form-tested-dark")
