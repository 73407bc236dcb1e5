"""Execute a notebook in a real kernel and show what its cells print while they run.

    python notebooks/run.py notebooks/quickstart.ipynb [NAME=VALUE ...]

NAME=VALUE replaces a variable of the cell tagged "parameters". The executed copy and its figures go to
build/notebooks/; the notebook itself is never changed. Exit status: 0, 1 when a cell failed (its traceback is
shown), 2 for a wrong call, 130 after Ctrl-C. The kernel and all that it started are gone in every case.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import base64
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
OUTPUT_FOLDER = ROOT / "build" / "notebooks"


class Screen:
    """The terminal: whole lines of output above one progress bar."""

    def __init__(self, cells: int) -> None:
        self._partial = ""
        # Without a terminal there is no bar; the numbered titles tell how far it has come.
        self._bar = tqdm(total=cells, unit="cell", leave=False, disable=None, dynamic_ncols=True)
        self._cells = cells

    def start_cell(self, number: int, title: str) -> None:
        self._bar.set_description(title[:30])
        self.line(f"[{number}/{self._cells}] {title}")

    def finish_cell(self) -> None:
        if self._partial:
            self.stream("\n")
        self._bar.update()

    def stream(self, text: str) -> None:
        """Show the whole lines in `text`; keep the rest until its line is complete."""
        *whole, self._partial = (self._partial + text).split("\n")
        for line in whole:
            self.line("    " + line.rstrip("\r").rsplit("\r", 1)[-1])

    def line(self, text: str) -> None:
        tqdm.write(text)
        sys.stdout.flush()

    def close(self) -> None:
        self._bar.close()


class LiveClient(NotebookClient):
    """nbclient, with each output shown as it arrives."""

    def __init__(
        self, notebook: nbformat.NotebookNode, screen: Screen, figures: Path, **options: Any
    ) -> None:
        super().__init__(notebook, timeout=None, record_timing=False, **options)
        self._screen = screen
        self._figures = figures
        self.figures: list[Path] = []

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        content = msg["content"]
        if msg["msg_type"] == "stream":
            self._screen.stream(content["text"])
        elif msg["msg_type"] in {"display_data", "execute_result"}:
            self._show(content["data"])
        return super().process_message(msg, cell, cell_index)

    def _show(self, data: dict[str, Any]) -> None:
        if "image/png" not in data:
            self._screen.stream(data.get("text/plain", "") + "\n")
            return
        path = Path(f"{self._figures}-{len(self.figures) + 1}.png")
        path.write_bytes(base64.b64decode(data["image/png"]))
        self.figures.append(path)
        self._screen.stream(f"figure: {_short(path)}\n")


def set_parameters(notebook: nbformat.NotebookNode, parameters: dict[str, Any]) -> None:
    """Put a cell with the values behind the one that is tagged "parameters".

    Raises:
        ValueError: no cell has the tag, or it doesn't set one of the names.
    """
    tagged = [i for i, c in enumerate(notebook.cells) if "parameters" in c.metadata.get("tags", [])]
    if not tagged:
        raise ValueError('the notebook has no cell tagged "parameters", so nothing can be set from outside')
    for name in parameters:
        if not re.search(rf"^{re.escape(name)}\s*=", notebook.cells[tagged[0]].source, re.MULTILINE):
            raise ValueError(f"{name} is not set in the notebook's parameters cell; look there for the names")
    source = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    notebook.cells.insert(tagged[0] + 1, nbformat.v4.new_code_cell(source))


async def execute(client: LiveClient, screen: Screen) -> None:
    """Run all code cells; cancelled by SIGINT (asyncio.run sees to it) or SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        # Not async_setup_kernel(): its signal handlers leave the cell waiting for a kernel that is gone.
        await client.async_start_new_kernel()
        await client.async_start_new_kernel_client()
        title = "start"
        number = 0
        for index, cell in enumerate(client.nb.cells):
            if cell.cell_type == "markdown":
                heading = re.search(r"^#+ (.*)", cell.source, re.MULTILINE)
                title = heading[1] if heading else title
            elif cell.cell_type == "code":
                number += 1
                screen.start_cell(number, title)
                await client.async_execute_cell(cell, index, execution_count=number)
                screen.finish_cell()
    except DeadKernelError:
        if task.cancelling():  # nbclient takes a cancelled cell for a dead kernel
            raise asyncio.CancelledError from None
        raise
    finally:
        # No grace: a kernel whose cells are through, or that was interrupted, has nothing left to say, and
        # what it has launched goes with it.
        if client.kc is not None:
            client.kc.stop_channels()
        if client.km.has_kernel:
            await client.km.shutdown_kernel(now=True)


def make_manager(folder: Path) -> AsyncKernelManager:
    """Manager of a kernel on this interpreter, whatever kernel specs the user has, with files in `folder`."""
    manager = AsyncKernelManager(
        transport="ipc",  # unix sockets: no port that somebody else could take or listen to
        ip=str(folder / "ipc"),
        connection_file=str(folder / "connection.json"),
    )
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, display_name="Python 3", language="python")  # noqa: SLF001
    return manager


def run(path: Path, parameters: dict[str, Any]) -> int:
    """Execute the notebook at `path`; returns the exit status."""
    notebook = nbformat.read(path, as_version=4)
    if parameters:
        set_parameters(notebook, parameters)
    OUTPUT_FOLDER.mkdir(parents=True, exist_ok=True)
    executed = OUTPUT_FOLDER / path.name
    screen = Screen(sum(cell.cell_type == "code" for cell in notebook.cells))
    resources = {"metadata": {"path": str(path.parent)}}
    start = time.monotonic()
    # Short, and removed with all that the kernel's sockets leave in it.
    folder = tempfile.TemporaryDirectory(prefix="nbaccel-run-")
    manager = make_manager(Path(folder.name))
    client = LiveClient(notebook, screen, OUTPUT_FOLDER / path.stem, km=manager, resources=resources)
    try:
        asyncio.run(execute(client, screen))
    except CellExecutionError as error:
        screen.close()
        print(f"\na cell failed:\n\n{_plain_unless_terminal(str(error))}", file=sys.stderr)
        status = 1
    except DeadKernelError as error:
        screen.close()
        print(f"\nthe kernel died: {error}", file=sys.stderr)
        status = 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        screen.close()
        print("\ninterrupted; the kernel and its workers are gone", file=sys.stderr)
        return 130
    else:
        status = 0
    finally:
        screen.close()
        folder.cleanup()
    nbformat.write(notebook, executed)
    print(f"{'done' if status == 0 else 'stopped'} after {time.monotonic() - start:.1f} s")
    print(f"executed copy: {_short(executed)}")
    if client.figures:
        print(f"last figure:   {_short(client.figures[-1])}")
    return status


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Execute a notebook in a real kernel, showing its output live."
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("parameters", nargs="*", metavar="NAME=VALUE", help="replaces a parameter")
    options = parser.parse_args(arguments)
    if not options.notebook.is_file():
        parser.error(f"there is no file {options.notebook}")
    try:
        parameters = dict(map(_parse_parameter, options.parameters))
        return run(options.notebook, parameters)
    except ValueError as error:
        parser.error(str(error))


def _parse_parameter(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise ValueError(f"{text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # plain text


def _plain_unless_terminal(text: str) -> str:
    return text if sys.stderr.isatty() else re.sub(r"\x1b\[[0-9;]*m", "", text)


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


if __name__ == "__main__":
    sys.exit(main())
