"""A hint when the notebook misses a name that its workers have. Says it after the error, changes nothing."""

from __future__ import annotations

import re
import weakref
from typing import Any

from nbaccel.launch import notices
from nbaccel.launch.current import current_session
from nbaccel.magics.runner import Runner

_UNDEFINED = re.compile(r"name '(\w+)' is not defined")

_runner: weakref.ref[Runner] | None = None


def remember(runner: Runner) -> None:
    """The runner whose workers are meant."""
    global _runner
    _runner = weakref.ref(runner)


def names_of_workers() -> list[str]:
    """Names that live on the workers."""
    runner = _runner() if _runner is not None else None
    running = current_session()
    if runner is None or running is None or not running.is_alive or runner.session is not running:
        return []
    return runner.names_of_workers


def hint_of_workers(result: Any) -> None:
    """After a cell: IPython's ``post_run_cell``."""
    error = result.error_in_exec
    if not isinstance(error, NameError) or hasattr(error, "rank"):
        return
    match = _UNDEFINED.search(str(error))
    if match is not None and match[1] in names_of_workers():
        name = match[1]
        notices.warn(f"{name} lives on the workers: %accelerate pull {name} brings it")
