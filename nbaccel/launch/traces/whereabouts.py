"""What this worker is doing, told by its service thread while the main thread may be stuck in C."""

from __future__ import annotations

import re
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from nbaccel.launch.traces.stacks import USER_CALL

_WAITING_MODULES = ("torch.distributed", "torch.autograd", "torch_xla")
"""A thread waits for its peers only inside these; anywhere else it works, as far as we know."""

_FILE_OF_A_FRAME = re.compile(r'^(?P<indent> *)File "(?P<file>[^"\n]+)", line', re.MULTILINE)

_LIBRARIES = ("torch", "torch_xla", "nbaccel", "contextlib", "functools")
_WRAPPERS = frozenset({"wrapper", "inner", "__call__", "<lambda>", "_user_call"})


@dataclass(frozen=True)
class Whereabouts:
    """One look at a worker."""

    cpu_seconds: float
    """Processor time of the whole process so far."""

    waits_in: str
    """The operation of torch or nbaccel that user code has called and that may wait for peers, e.g.
    ``gather``; empty when the main thread is elsewhere."""

    filename: str
    """File of the user's line that runs, a notebook cell's included; empty when no user code runs."""

    line: int
    """That line, from 1."""


def look(thread: int | None = None) -> Whereabouts:
    """Where a thread is, and how much processor time the process has used.

    Args:
        thread: its identity; None: the main one.
    """
    frame = sys._current_frames().get(thread or threading.main_thread().ident or 0)  # noqa: SLF001
    if frame is None:
        return Whereabouts(time.process_time(), "", "", 0)
    innermost = str(frame.f_globals.get("__name__", ""))
    stack = list(traceback.walk_stack(frame))[::-1]
    names = [entry.f_code.co_name for entry, _ in stack]
    if USER_CALL not in names:
        return Whereabouts(time.process_time(), "", "", 0)
    stack = stack[names.index(USER_CALL) + 1 :]
    user = next((i for i in reversed(range(len(stack))) if not _is_library(stack[i][0])), None)
    if user is None:
        return Whereabouts(time.process_time(), "", "", 0)
    operation = ""
    if innermost.startswith(_WAITING_MODULES):
        called = (entry.f_code.co_name for entry, _ in stack[user + 1 :])
        operation = next((name for name in called if name not in _WRAPPERS), "")
    return Whereabouts(time.process_time(), operation, stack[user][0].f_code.co_filename, stack[user][1])


def _is_library(frame: object) -> bool:
    name = str(getattr(frame, "f_globals", {}).get("__name__", ""))
    return name.partition(".")[0] in _LIBRARIES


def describe_place(filename: str, line: int) -> str:
    """``Cell In[5], line 12`` in a notebook, ``train.py, line 12`` elsewhere."""
    return f"{_cell_name(filename) or Path(filename).name}, line {line}"


def name_cells(stacks: str) -> str:
    """The text of :mod:`nbaccel.launch.traces.stacks` with a notebook's cells called as the notebook does."""

    def named(found: re.Match[str]) -> str:
        cell = _cell_name(found["file"])
        return found[0] if cell is None else f"{found['indent']}{cell}, line"

    return _FILE_OF_A_FRAME.sub(named, stacks)


def _cell_name(filename: str) -> str | None:
    """The name IPython gives the cell with this file name; None when it isn't a cell's."""
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    compiler = getattr(shell, "compile", None)
    if compiler is None or not hasattr(compiler, "format_code_name"):
        return None
    name = compiler.format_code_name(filename)
    return None if name is None else " ".join(name)
