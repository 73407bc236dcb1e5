"""What asks a person for input finds nobody in a worker, and says so instead of failing obscurely."""

from __future__ import annotations

import bdb
import builtins
import sys
from typing import Any, NoReturn

_HINT = "a worker has no keyboard; ask before the launch, and use %debug or nbaccel.last_failure() after it"


def install() -> None:
    """Refuse ``input()`` and ``breakpoint()`` in this process."""
    builtins.input = _refuse_input
    sys.breakpointhook = _refuse_breakpoint


def explained(error: BaseException) -> BaseException:
    """``pdb`` ends with an exception that notebooks don't show; another one for it, else the same."""
    if isinstance(error, bdb.BdbQuit):
        return RuntimeError(f"pdb found no input: {_HINT}").with_traceback(error.__traceback__)
    return error


def _refuse_input(*_: object) -> NoReturn:
    raise EOFError(f"input() found no input: {_HINT}")


def _refuse_breakpoint(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(f"breakpoint() found no input: {_HINT}")
