"""What the operating system is asked for: sessions, death signals, signals to known processes.

Every assumption about the platform that the launcher makes stands in this file, and what only Windows
is asked for in :mod:`nbaccel.launch.system.windows`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import psutil

from nbaccel.errors import LaunchError
from nbaccel.launch.system.wakeup import Wakeup, is_readable
from nbaccel.launch.system.windows import EXIT_NAMES

PLATFORM_NAME = "NBACCEL_PLATFORM"
"""Environment name, for tests: ``portable`` makes the launcher do without what Windows hasn't got."""

KILL: int = getattr(signal, "SIGKILL", signal.SIGTERM)
"""The signal that nobody can ignore. On Windows each signal but Ctrl-C ends a process at once."""

_JOIN_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def is_portable() -> bool:
    """Whether to do without fork, process groups, signals between processes and passing of descriptors.

    So it is on Windows, which has none of them; see ``docs/platforms.md``.
    """
    return sys.platform == "win32" or os.environ.get(PLATFORM_NAME) == "portable"


def at_fork(
    *,
    before: Callable[[], None] | None = None,
    after_in_parent: Callable[[], None] | None = None,
    after_in_child: Callable[[], None] | None = None,
) -> None:
    """:func:`os.register_at_fork`, where there are forks."""
    if sys.platform != "win32" and hasattr(os, "register_at_fork"):
        hooks = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
        os.register_at_fork(**{name: hook for name, hook in hooks.items() if hook is not None})


def _prctl(option: int, value: int) -> None:
    if not sys.platform.startswith("linux") or is_portable():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"prctl({option})")


def die_with_parent(parent: int) -> None:
    """Ask the system to kill this process when its parent ends (Linux; elsewhere end of file does it).

    ``parent`` is the pid expected: when it is gone already, the signal would never come.
    """
    _prctl(_PR_SET_PDEATHSIG, KILL)
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
    if sys.platform == "win32":
        raise NotImplementedError("Windows has no process groups")
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
    if sys.platform == "win32":
        raise NotImplementedError("Windows has no process groups")
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
    return sys.platform.startswith("linux") and not is_portable()


def lead_session() -> None:
    """Make this process the leader of a session, so that what is meant for its parent isn't for it."""
    if sys.platform != "win32" and os.getsid(0) != os.getpid():
        os.setsid()


def end_with_descendants() -> NoReturn:
    """End this process, which leads a session, and all that it has started."""
    if sys.platform != "win32":
        kill_group(os.getpid(), KILL)
    # Windows: the job object ends with the process that made it, and all in it.
    os._exit(1)


def interrupt_main_thread() -> None:
    """As Ctrl-C would, from another thread: also a main thread that sleeps in the system is woken."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    else:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)


class ExitWatch:
    """Something that becomes readable when a child of this process ends, and doesn't reap it."""

    def __init__(self, pid: int, wait: Callable[[], object] | None = None) -> None:
        """Watch a child that isn't reaped yet.

        Args:
            pid: the child.
            wait: returns when it has ended, for where the system has nothing to wait on; None asks the
                system, which isn't possible everywhere.
        """
        self._pid = pid
        self._kqueue: Any = None
        self._fd = -1
        self._wakeup: Wakeup | None = None
        self._thread: threading.Thread | None = None
        if sys.platform == "win32" or is_portable():
            self._watch_in_thread(wait)
        elif sys.platform == "linux":
            try:
                self._fd = os.pidfd_open(pid)
            except OSError:  # not offered by this system, or by what stands in for it in a sandbox
                self._watch_in_thread(wait)
        else:
            # The BSDs and macOS: a queue of events, which is itself something to wait on.
            self._kqueue = select.kqueue()
            self._fd = self._kqueue.fileno()
            event = select.kevent(
                pid, filter=select.KQ_FILTER_PROC, flags=select.KQ_EV_ADD, fflags=select.KQ_NOTE_EXIT
            )
            try:
                self._kqueue.control([event], 0)
            except ProcessLookupError:
                # It has ended already: a process that waits to be reaped can't be watched any more.
                self._kqueue.close()
                self._kqueue = None
                self._watch_in_thread(lambda: None)

    def _watch_in_thread(self, wait: Callable[[], object] | None) -> None:
        self._wakeup = Wakeup()
        self._fd = self._wakeup.fileno()
        self._thread = threading.Thread(
            target=self._wait, args=(wait, self._wakeup), name="nbaccel-exit-watch", daemon=True
        )
        self._thread.start()

    def _wait(self, wait: Callable[[], object] | None, wakeup: Wakeup) -> None:
        try:
            if wait is not None:
                wait()
            elif sys.platform == "linux":
                os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return  # somebody else in this process waited for all children
        finally:
            wakeup.wake()

    def fileno(self) -> int:
        """What to wait on."""
        return self._fd

    def has_ended(self) -> bool:
        """Whether the child has ended, without waiting."""
        return is_readable(self._fd)

    def close(self) -> None:
        """Give up the descriptor; the child has ended."""
        if self._wakeup is not None:
            assert self._thread is not None
            self._thread.join(_JOIN_SECONDS)
            self._wakeup.close()
        elif self._kqueue is not None:
            self._kqueue.close()
        else:
            os.close(self._fd)


def describe_exit(code: int) -> str:
    """``SIGKILL`` for -9, ``exit code 3``, and what Windows tells of a process that it has ended."""
    if code < 0:
        return describe_signal(-code)
    name = EXIT_NAMES.get(code)
    return f"exit code {code}" if name is None else f"exit code {code:#x}, {name}"


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
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def socket_numbers() -> Iterator[int]:
    """Numbers of this process's descriptors, and of its sockets certainly; others may be among them."""
    if sys.platform == "win32":
        from nbaccel.launch.system import windows

        return windows.socket_numbers()
    folder = next((f for f in ("/proc/self/fd", "/dev/fd") if Path(f).is_dir()), None)
    if folder is None or is_portable():
        return iter(range(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 16)))
    return iter([int(entry.name) for entry in Path(folder).iterdir()])


def usable_cores() -> int:
    """Cores that this process may run on."""
    if sys.platform == "linux":
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return count


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
