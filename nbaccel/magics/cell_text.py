"""The text of the cell that a magic was called from, under the name that tracebacks know it by.

Workers compile the cell under that name, with the line numbers that it has in the notebook.
"""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import Any

from nbaccel.magics.runner import CellText

_MAGIC = "%%accelerate"


def running_cell(shell: Any, line: str, body: str) -> CellText:
    """The cell as its workers need it.

    Args:
        shell: IPython's.
        line: what follows the magic in its line.
        body: what follows that line.
    """
    whole = _whole(shell, body)
    filename, count = _name(shell)
    if whole is None or filename is None:
        # Called by other code: the text gets a name of its own.
        whole = f"{_MAGIC} {line}".rstrip() + f"\n{body}"
        filename = shell.compile.cache(whole, count)
    else:
        # IPython keeps what it has made of the cell; tracebacks shall show what the user wrote.
        linecache.cache[filename] = (len(whole), None, whole.splitlines(keepends=True), filename)
    stripped = body.rstrip("\n")
    start = whole.rfind(stripped) if stripped else len(whole)
    # IPython's transformations drop empty lines at the start.
    lines = body.splitlines(keepends=True)
    empty = next((number for number, text in enumerate(lines) if text.strip()), 0)
    return CellText(
        source=shell.transform_cell(body),
        raw=body,
        filename=filename,
        text=whole,
        offset=whole.count("\n", 0, start) + empty,
        count=count,
    )


def _whole(shell: Any, body: str) -> str | None:
    """The cell with the magic's line and what may stand in front of it; None when the cell is another one."""
    history = shell.history_manager.input_hist_raw
    last: str = history[-1] if history else ""
    fits = _MAGIC in last and body.strip() and last.rstrip("\n").endswith(body.rstrip("\n"))
    return last if fits else None


def _name(shell: Any) -> tuple[str | None, int]:
    """File name and number of the running cell: of the innermost frame that belongs to one."""
    names: dict[str, int] = getattr(shell.compile, "_filename_map", {})
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # private by name, documented all the same
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename in names:
            return filename, names[filename]
        frame = frame.f_back
    return None, int(shell.execution_count)
