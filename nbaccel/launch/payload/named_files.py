"""Files with a name, for payloads where no descriptor can be passed to another process.

Two ways to hand one on:

* lent: the writer keeps it, others open it by name, and it ends when the writer closes it;
* given: the writer closes it, the one who opens it owns it, and it ends at once (POSIX) or when that
  one closes it (Windows).

A file lies in the folder for temporary files, readable for its owner only, or in a folder of the
launch. The name says whose it is, so that what a killed process left can be told and removed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import psutil

PREFIX = "nbaccel-payload-"

_folder: str | None = None


def use_folder(folder: str) -> None:
    """In a worker: let what is written from now on lie in the folder of the launch."""
    global _folder
    _folder = folder


def make_folder() -> str:
    """A folder for what the workers of one launch write, for its owner only."""
    return tempfile.mkdtemp(prefix=_owner_prefix())


def remove_folder(folder: str) -> None:
    """Remove it and what nobody has taken."""
    shutil.rmtree(folder, ignore_errors=True)  # Windows: what a user still has mapped stays until the end


def create(*, lent: bool) -> tuple[int, str]:
    """A new file: descriptor, for reading and writing, and name.

    Args:
        lent: it ends when we close it (on Windows by itself, elsewhere by :func:`remove`).

    Raises:
        OSError: it can't be made.
    """
    folder = _folder or tempfile.gettempdir()
    if sys.platform == "win32":
        from nbaccel.launch.system import windows

        path = str(Path(folder, f"{_owner_prefix()}{secrets.token_hex(8)}"))
        return windows.create_file(path, ends_with_us=lent), path
    return tempfile.mkstemp(prefix=_owner_prefix(), dir=folder)


def open_lent(path: str) -> int:
    """Open a file that stays its writer's."""
    if sys.platform == "win32":
        from nbaccel.launch.system import windows

        return windows.open_file(path, ends_with_us=False)
    return os.open(path, os.O_RDONLY)


def open_given(path: str) -> int:
    """Open a file that is ours from now on: when we have closed it, it is gone."""
    if sys.platform == "win32":
        from nbaccel.launch.system import windows

        return windows.open_file(path, ends_with_us=True)
    fd = os.open(path, os.O_RDONLY)
    remove(path)
    return fd


def remove(path: str) -> None:
    """Remove a file that nobody is to open any more, if it is still there."""
    try:
        Path(path).unlink()
    except (FileNotFoundError, PermissionError):
        # Gone; or, on Windows, somebody has it mapped: it ends with its folder, or is swept up later.
        return


def sweep() -> None:
    """Remove what processes of this user have left that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*-*"):
        pid, _, started = path.name.removeprefix(PREFIX).rpartition("-")[0].partition("-")
        if not pid.isdecimal() or not started.isdecimal() or _is_alive(int(pid), int(started)):
            continue
        if path.is_dir():
            remove_folder(str(path))
        else:
            remove(str(path))


def _owner_prefix() -> str:
    return f"{PREFIX}{os.getpid()}-{_start_of(psutil.Process())}-"


def _start_of(process: psutil.Process) -> int:
    return int(process.create_time())


def _is_alive(pid: int, started: int) -> bool:
    try:
        return abs(_start_of(psutil.Process(pid)) - started) <= 1  # clocks may be set meanwhile, a little
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True  # somebody else's: not ours to remove
