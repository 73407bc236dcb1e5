"""One JupyterLab server and one browser window for all tests here; each has its own notebook and kernel."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator

import nbformat
import psutil
import pytest

from tests import leaks
from tests.browser.notebook_page import NotebookPage
from tests.browser.server import KERNEL_SPEC, JupyterServer
from tests.browser.window import KERNEL_NAME, LIGHT, LabWindow

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    # As root, in containers: Chromium's own sandbox needs rights that aren't there. It sees only our server.
    "--no-sandbox",
    "--disable-gpu",
    # Nothing is asked of anybody else's servers.
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
OpenNotebook = Callable[..., NotebookPage]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what is missing as a skip, not as an error of each test."""
    missing = _what_is_missing()
    for item in items:
        if "/tests/browser/" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


def _what_is_missing() -> str:
    try:
        import jupyterlab  # noqa: F401
        import playwright  # noqa: F401
    except ImportError as error:
        return f"{error}; install the extra: pip install -e '.[browser]'"
    if _chromium() is None:
        return (
            f"none of {', '.join(CHROMIUM)} is on the path: install Chromium (Debian: apt install chromium)"
        )
    return ""


def _chromium() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@pytest.fixture(scope="session")
def server() -> Iterator[JupyterServer]:
    with JupyterServer() as server:
        yield server


@pytest.fixture(scope="session")
def window(server: JupyterServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabWindow]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        for child in psutil.Process().children():
            if "playwright" in " ".join(child.cmdline()):
                leaks.leave_to_itself(child.pid)
        browser = playwright.chromium.launch(
            executable_path=_chromium(),
            args=FLAGS,
            # The profile and other files: not in the directory that is looked at for leaks.
            env={"HOME": str(tmp_path_factory.mktemp("home")), "TMPDIR": str(tmp_path_factory.mktemp("tmp"))},
        )
        # Tall, so that what a test looks at is on the screen.
        page = browser.new_page(viewport={"width": 1300, "height": 1400})
        yield LabWindow(page, f"{server.url}lab?token={server.token}&reset")
        browser.close()


@pytest.fixture
def open_notebook(server: JupyterServer, window: LabWindow) -> Iterator[OpenNotebook]:
    """Makes a notebook of the given cells and opens it: ``open_notebook("x = 1", "x", theme=DARK)``.

    After the test it is closed, its kernel is shut down, and nothing of it may be left.
    """
    numbers = itertools.count(1)

    def open_one(*cells: str, theme: str = LIGHT) -> NotebookPage:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        notebook.metadata["kernelspec"] = {"name": KERNEL_SPEC, "display_name": KERNEL_NAME}
        path = server.root / f"notebook-{next(numbers)}.ipynb"
        nbformat.write(notebook, path)
        window.use_theme(theme)
        window.open(path)
        return NotebookPage(window, path)

    yield open_one
    while window.panel.count():
        window.close_notebook()
    server.shut_down_kernels()
    server.wait_until_alone()
    for path in server.root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
