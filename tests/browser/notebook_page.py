"""A notebook in JupyterLab's window, used as a person uses it: clicks, keys, and what is read on the screen.

It must never reach behind the screen, neither into the kernel nor into JupyterLab's objects. Waiting is for
conditions, with a deadline; a failure comes with a picture (see `window.SCREENSHOTS`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

from tests.browser.window import LabWindow

if TYPE_CHECKING:
    # At run time this would make the tests that use no browser ask for Playwright.
    from playwright.sync_api import Locator

CELL_TIMEOUT_S = 60.0

STDERR = '[data-mime-type="application/vnd.jupyter.stderr"]'
"""Errors are shown as this, and what was written to stderr too."""

_RUNNING = "[*]:"


class NotebookPage:
    """One open notebook in JupyterLab's window. Cells are counted from 0."""

    def __init__(self, window: LabWindow, path: Path) -> None:
        """See `LabWindow.open`."""
        self.window = window
        self.page = window.page
        self.path = path

    # --- cells ----------------------------------------------------------------------------------

    def cell(self, index: int) -> Locator:
        return self.window.panel.locator(".jp-Notebook .jp-Cell").nth(index)

    def start(self, index: int) -> None:
        """Run a cell with Ctrl+Enter, and wait only until the notebook shows that it runs or has run."""
        with self.window.picture_of_failure():
            before = self.prompt(index)
            editor = self.cell(index).locator(".cm-content")
            editor.click()
            editor.press("Control+Enter")
            self.window.wait_for(lambda: self.prompt(index) != before, 10, f"a new prompt of cell {index}")

    def wait(self, index: int, timeout: float = CELL_TIMEOUT_S) -> str:
        """Wait for the end of a cell that was started; returns the text of its output."""
        with self.window.picture_of_failure():
            self.window.wait_for(lambda: self.prompt(index) != _RUNNING, timeout, f"the end of cell {index}")
        return self.text(index)

    def run(self, index: int, timeout: float = CELL_TIMEOUT_S) -> str:
        """Run a cell to its end; returns the text of its output."""
        self.start(index)
        return self.wait(index, timeout)

    def wait_for_text(self, index: int, text: str, timeout: float = CELL_TIMEOUT_S) -> None:
        """Wait until the cell's output shows `text`."""
        with self.window.picture_of_failure():
            self.window.wait_for(lambda: text in self.text(index), timeout, f"{text!r} in cell {index}")

    def prompt(self, index: int) -> str:
        """What stands left of the cell: ``[3]:``, ``[*]:`` while it runs, ``[ ]:`` before."""
        return self.cell(index).locator(".jp-InputPrompt").inner_text().strip()

    def text(self, index: int) -> str:
        """All text of the cell's output, as it is seen."""
        return "\n".join(self.cell(index).locator(".jp-OutputArea-output").all_inner_texts())

    def lines(self, index: int) -> list[str]:
        """The lines of the cell's output that aren't empty."""
        return [line for line in self.text(index).splitlines() if line.strip()]

    def outputs(self, index: int, selector: str = "") -> Locator:
        """The parts of the cell's output; with `selector` what fits it within them, e.g. ``img``."""
        return self.cell(index).locator(f".jp-OutputArea-output {selector}".strip())

    def error(self, index: int) -> str:
        """The text of the cell's one error with its traceback; fails when there is none, or more than one."""
        parts = self.cell(index).locator(f".jp-OutputArea-output{STDERR}").all_inner_texts()
        errors = [part for part in parts if part.lstrip().startswith("-" * 60)]  # IPython's line above one
        assert len(errors) == 1, f"{len(errors)} errors; the cell shows:\n{self.text(index)}"
        return errors[0]

    # --- kernel ---------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """The stop button of the toolbar."""
        self.window.press_button("notebook:interrupt-kernel")

    def interrupt_by_keys(self, index: int) -> None:
        """``I``, ``I`` in command mode."""
        self.cell(index).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("i")
        self.page.keyboard.press("i")

    def restart(self) -> None:
        """The restart button of the toolbar, and the button of the question that follows."""
        with self.window.picture_of_failure():
            self.window.press_button("notebook:restart-kernel")
            self.window.accept()

    def shut_down(self) -> None:
        """Shut Down Kernel in the menu Kernel."""
        self.window.choose("Kernel", "kernelmenu:shutdown")

    # --- file and window ------------------------------------------------------------------------

    def save(self) -> nbformat.NotebookNode:
        """Ctrl+S; returns the notebook as it then stands in the file."""
        with self.window.picture_of_failure():
            before = self.path.stat().st_mtime_ns
            self.cell(0).locator(".jp-InputPrompt").click()
            self.page.keyboard.press("Control+s")
            # Written beside and moved over: from the first change on, the file is whole.
            self.window.wait_for(
                lambda: self.path.stat().st_mtime_ns != before and self.path.stat().st_size > 0,
                15,
                "the file to be written",
            )
        return nbformat.read(self.path, as_version=4)

    def reload(self) -> None:
        """Load the whole page anew, as after closing the laptop, and open the notebook again."""
        self.window.load()
        self.window.open(self.path)
