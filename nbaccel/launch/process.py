"""What the operating system is asked for: sessions, death signals, signals to known processes.

Every assumption about the platform that the launcher makes stands in this file.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from nbaccel.errors import LaunchError

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"prctl({option})")


def die_with_parent(parent: int) -> None:
    """Ask the system to kill this process when its parent ends (Linux; elsewhere end of file does it).

    ``parent`` is the pid expected: when it is gone already, the signal would never come.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_name(name: str) -> None:
    """The name in process listings (Linux; it keeps 15 bytes of it)."""
    buffer = ctypes.create_string_buffer(name.encode())
    _prctl(_PR_SET_NAME, ctypes.addressof(buffer))


def outlive_parent() -> None:
    """Take :func:`die_with_parent` back."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none escapes (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_group(pid: int, signum: int) -> None:
    """Signal the process group that ``pid`` leads. The caller knows that ``pid`` isn't reaped yet."""
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:
        return  # everybody in it has ended by now
    except PermissionError:
        # macOS answers so for a group that holds only zombies; a member that changed its user
        # is none of ours to signal.
        return


def group_is_gone(pid: int) -> bool:
    """Whether the process group that ``pid`` led has no member left, none that waits to be reaped either."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def await_group_gone(pid: int, seconds: float) -> bool:
    """Wait until :func:`group_is_gone`, for a killed group whose members aren't our children."""
    deadline = time.monotonic() + seconds
    while not group_is_gone(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)  # the system tells nobody but the parent
    return True


def child_pids() -> list[int]:
    """Processes whose parent this one is, by birth or by adoption."""
    listing = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    if listing.exists():
        return [int(word) for word in listing.read_text().split()]
    return [child.pid for child in psutil.Process().children()]


def forks_safely() -> bool:
    """Whether a process that has loaded torch may be forked: system libraries of macOS break by it."""
    return sys.platform.startswith("linux")


class ExitWatch:
    """A descriptor that becomes readable when a child of this process ends."""

    def __init__(self, pid: int) -> None:
        self._kqueue: Any = None
        if hasattr(os, "pidfd_open"):
            self._fd = os.pidfd_open(pid)
        else:
            # The BSDs and macOS: a queue of events, which is itself something to wait on.
            self._kqueue = select.kqueue()  # type: ignore[attr-defined]
            event = select.kevent(  # type: ignore[attr-defined]
                pid,
                filter=select.KQ_FILTER_PROC,  # type: ignore[attr-defined]
                flags=select.KQ_EV_ADD,  # type: ignore[attr-defined]
                fflags=select.KQ_NOTE_EXIT,  # type: ignore[attr-defined]
            )
            self._kqueue.control([event], 0)
            self._fd = self._kqueue.fileno()

    def fileno(self) -> int:
        """What to wait on."""
        return self._fd

    def has_ended(self) -> bool:
        """Whether the child has ended, without waiting."""
        return bool(select.select([self._fd], [], [], 0)[0])

    def close(self) -> None:
        """Give up the descriptor."""
        if self._kqueue is not None:
            self._kqueue.close()
        else:
            os.close(self._fd)


def describe_signal(signum: int) -> str:
    """``SIGKILL`` for 9; the number where the platform has no name for it."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def import_path() -> tuple[str, ...]:
    """``sys.path`` as texts: notebooks put :class:`~pathlib.Path` objects there, too."""
    return tuple(os.fspath(entry) for entry in sys.path if isinstance(entry, (str, os.PathLike)))


def absolute_import_path() -> list[str]:
    """The same for a process that starts in another folder; the empty entry means this one."""
    here = working_folder()
    return [str(Path(here, entry)) for entry in import_path()]


def working_folder() -> str:
    """The current folder.

    Raises:
        LaunchError: it has been deleted.
    """
    try:
        return os.getcwd()  # noqa: PTH109  # a text, for a message
    except FileNotFoundError:
        raise LaunchError(
            "this process's current folder has been deleted; go to another one with os.chdir() and try again"
        ) from None


def default_signal_mask() -> None:
    """Let all signals in: a mask is inherited, and what this process waits for might be blocked."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_memory() -> int:
    """Bytes of memory that this process may count on: the machine's, or its container's limit."""
    limits = [psutil.virtual_memory().total]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue  # no such container
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


@cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if os.name == "posix" else None


def send_c_output_by_line() -> None:
    """What C code prints leaves this process line by line, also when it goes to a pipe."""
    libc = _libc()
    name = "__stdoutp" if sys.platform == "darwin" else "stdout"
    if libc is not None:
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, ctypes.c_int(1), ctypes.c_size_t(0))


def flush_c_output() -> None:
    """Send on what C code has printed so far."""
    libc = _libc()
    if libc is not None:
        libc.fflush(None)


@cache
def loopback_interface() -> str | None:
    """Name of the interface that has 127.0.0.1 (``lo``, ``lo0``, ...), or None."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return None


def parallel_threads() -> int:
    """Threads that native libraries keep for parallel work, an OpenMP pool above all (Linux; else 0).

    Python's own threads aren't counted, nor those of libraries that are known to survive a fork:
    ZeroMQ's, and the pool that numpy's OpenBLAS makes when it is imported.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return 0
    python_threads = {thread.native_id for thread in threading.enumerate()}
    count = 0
    for task in tasks.iterdir():
        try:
            is_native = int(task.name) not in python_threads
            if is_native and not (task / "comm").read_text().startswith("ZMQ"):
                count += 1
        except FileNotFoundError:
            continue  # it has ended since it was listed
    openblas = (os.cpu_count() or 1) - 1 if "numpy" in sys.modules else 0
    return max(0, count - openblas)
