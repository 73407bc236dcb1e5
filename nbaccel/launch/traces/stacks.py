"""Where the threads of this process are, as text."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

from nbaccel.launch.traces.owners import is_launcher

OUR_THREADS = "nbaccel-"
"""What the names of a worker's own threads start with."""

IDLE = "  no user code runs\n"

USER_CALL = "_user_call"
"""Name of the function of ours below which everything is the user's."""


REPLICA_THREADS = "rank-"
"""What the names of threads that are ranks of their own start with."""


def describe(skip: int | None = None, of: int | None = None) -> str:
    """One block a thread, the main thread first; our own threads are left out.

    Args:
        skip: identity of a thread to leave out.
        of: identity of the only thread to describe; None: all but those that are ranks of their own.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    blocks = []
    running = sys._current_frames()  # noqa: SLF001  # private by name, documented all the same
    for ident, frame in sorted(running.items(), key=lambda item: item[0] != main):
        name = names.get(ident, f"thread {ident}")
        if ident == skip or name.startswith(OUR_THREADS):
            continue
        if ident != of and (of is not None or name.startswith(REPLICA_THREADS)):
            continue
        frames = _below_us(traceback.extract_stack(frame))
        blocks.append(f"{name}:\n" + ("".join(traceback.format_list(frames)) or IDLE))
    return "\n".join(blocks)


def _below_us(frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """What user code calls; where it isn't running, everything that isn't ours."""
    for index, frame in enumerate(frames):
        if frame.name == USER_CALL:
            return _below_shell(frames[index + 1 :])
    return [frame for frame in frames if not is_launcher(frame.filename) and frame.filename != "<string>"]


def _below_shell(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The user's frames of a cell: a shell stands between us and them."""
    if not frames or not is_launcher(frames[0].filename):
        return frames
    for index, frame in enumerate(frames):
        if not is_launcher(frame.filename) and "IPython" not in Path(frame.filename).parts:
            return frames[index:]
    return frames
