"""JupyterLab's window: menus, dialogs, theme, and the notebook that is open in it.

Loading JupyterLab takes seconds, so one window serves many tests; each opens a notebook of its own in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

LOAD_TIMEOUT_S = 60.0
SCREENSHOTS = "NBACCEL_TEST_SCREENSHOTS"
"""Environment variable with the folder in which pictures of pages are kept; failures are pictured too."""

KERNEL_NAME = "nbaccel test"
"""As it is shown."""

LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"


class LabWindow:
    """A browser page with JupyterLab in it."""

    def __init__(self, page: Page, url: str) -> None:
        """Load JupyterLab from `url`, which has the token as its query."""
        self.page = page
        self._url = url
        self.load()

    def load(self) -> None:
        """Load the page, also anew, without the notebooks that were open in it."""
        with self.picture_of_failure():
            self.page.goto(self._url, timeout=LOAD_TIMEOUT_S * 1000)
            self._menu("File").wait_for(timeout=LOAD_TIMEOUT_S * 1000)
            self.page.locator("#jupyterlab-splash").wait_for(state="detached", timeout=LOAD_TIMEOUT_S * 1000)

    @property
    def panel(self) -> Locator:
        """The notebook that is seen."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    def open(self, path: Path) -> None:
        """Open the notebook by Open from Path in the menu File, and wait until its kernel is idle."""
        with self.picture_of_failure():
            self.choose("File", "filebrowser:open-path")
            self.page.locator(".jp-Dialog input").fill(path.name)
            self.page.keyboard.press("Enter")
            self.panel.locator(".jp-Cell .cm-content").first.wait_for(timeout=LOAD_TIMEOUT_S * 1000)
            self.wait_until_idle()

    def close_notebook(self) -> None:
        """Close the tab of the notebook that is seen, without saving it."""
        with self.picture_of_failure():
            self.page.locator("#jp-main-dock-panel .lm-mod-current .lm-TabBar-tabCloseIcon").click()
            self.wait_for(lambda: self.panel.count() == 0 or self._dialog().count() > 0, 15, "a closed tab")
            if self._dialog().count():
                self._dialog().get_by_role("button", name="Discard").click()
            self.panel.wait_for(state="detached")

    def use_theme(self, name: str) -> None:
        """Choose a theme in the menu Settings, unless it is there already."""
        if self.page.locator("body").get_attribute("data-jp-theme-name") == name:
            return
        with self.picture_of_failure():
            self._menu("Settings").click()
            self.page.locator('.lm-Menu-item[data-type="submenu"]', has_text="Theme").first.hover()
            self.page.locator(".lm-Menu").get_by_role("menuitem", name=name, exact=True).click()
            self.page.locator(f'body[data-jp-theme-name="{name}"]').wait_for(state="attached")

    def choose(self, menu: str, command: str) -> None:
        """Open a menu of the bar and click the entry that has this JupyterLab command."""
        with self.picture_of_failure():
            self._menu(menu).click()
            self.page.locator(f'.lm-Menu-item[data-command="{command}"]').click()

    def press_button(self, command: str) -> None:
        """Click the button of the notebook's toolbar that has this JupyterLab command."""
        with self.picture_of_failure():
            self.panel.locator(f'.jp-NotebookPanel-toolbar [data-command="{command}"]').click()

    def accept(self) -> None:
        """Say yes to the question that is asked."""
        with self.picture_of_failure():
            self._dialog().locator(".jp-mod-accept").click()
            self._dialog().wait_for(state="detached")

    def wait_until_idle(self, timeout: float = LOAD_TIMEOUT_S) -> None:
        """Wait until the status bar says that the kernel is idle (the toolbar says so too early)."""
        with self.picture_of_failure():
            text = self.page.locator("#jp-main-statusbar").get_by_text(f"{KERNEL_NAME} | Idle")
            text.wait_for(timeout=timeout * 1000)

    def screenshot(self, name: str) -> Path | None:
        """Keep a picture of the page, when `SCREENSHOTS` names a folder."""
        if (folder := os.environ.get(SCREENSHOTS)) is None:
            return None
        target = Path(folder) / f"{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.page.screenshot())  # with path= Playwright would keep a thread for the file
        return target

    def wait_for(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait until the condition holds, while the page lives on.

        Raises:
            TimeoutError: it doesn't hold after `timeout` seconds; the text has what the cells show.
        """
        step_ms = 50
        for _ in range(int(timeout * 1000 / step_ms) + 1):
            if condition():
                return
            self.page.wait_for_timeout(step_ms)  # reads what the browser sends
        shown = "\n".join(self.panel.locator(".jp-OutputArea-output").all_inner_texts())
        raise TimeoutError(f"waited {timeout} s for {what}; the notebook shows:\n{shown[-4000:]}")

    @contextmanager
    def picture_of_failure(self) -> Iterator[None]:
        """Keep a picture of the page when the body raises."""
        try:
            yield
        except Exception:
            self.screenshot("failure")
            self.page.keyboard.press("Escape")  # a menu that is left open would stand in the next test's way
            raise

    def _menu(self, name: str) -> Locator:
        return self.page.locator(".lm-MenuBar").get_by_role("menuitem", name=name, exact=True)

    def _dialog(self) -> Locator:
        return self.page.locator(".jp-Dialog")
