"""Ways to bring up a worker process, behind one interface.

Whichever is used, the process runs :mod:`nbaccel.launch.worker.worker` and is spoken to in the same way. Here
are those that inherit descriptors; :mod:`nbaccel.launch.group.spawner_portable` is for where none can be.
"""

from __future__ import annotations

import atexit
import multiprocessing.process
import multiprocessing.util
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from nbaccel.errors import LaunchError
from nbaccel.launch import notices
from nbaccel.launch.output.byte_sources import ByteSource, PipeSource
from nbaccel.launch.system import process
from nbaccel.launch.transport.channel import Channel
from nbaccel.launch.zygotes.zygote import EXIT_STATUS
from nbaccel.launch.zygotes.zygote_client import current_zygote

_GROUP_END_TIMEOUT = 0.5


class WorkerProcess(Protocol):
    """A process that was started and is not yet known to have ended."""

    pid: int

    def fileno(self) -> int:
        """Becomes readable when the process has ended."""

    def exitcode(self) -> int | None:
        """After :meth:`fileno` is readable: the exit status, ``-N`` for signal N.

        None when nobody can tell any more. The process is reaped and its group is gone.
        """

    def signal(self, signum: int, *, group: bool = False) -> None:
        """Signal the process, or all in its group; nothing happens when it has ended."""

    def close(self) -> None:
        """Give up the descriptor."""


@dataclass(frozen=True)
class StartedWorker:
    """A worker process and the ways to it. Whoever has it owns them all."""

    process: WorkerProcess
    channel: Channel
    out: ByteSource
    err: ByteSource


class Spawner(Protocol):
    """Starts worker processes."""

    def start(self, name: str) -> StartedWorker:
        """Start one worker; ``name`` is what process listings show.

        Raises:
            LaunchError: the system refused.
            OSError: it has no descriptors left.
        """

    def close(self) -> None:
        """When no worker is left: free what they shared."""


def on_descriptors(start: Callable[[int, int, int], WorkerProcess]) -> StartedWorker:
    """Start a worker that inherits, or is handed, a socket and the write ends of two pipes.

    Args:
        start: starts it on its ends of channel, stdout and stderr, which stay ours to close.
    """
    channel, theirs = Channel.pair()
    fds: list[int] = []
    try:
        out_r, out_w = os.pipe()
        fds += [out_r, out_w]
        err_r, err_w = os.pipe()
        fds += [err_r, err_w]
        worker = start(theirs.fileno(), out_w, err_w)
    except BaseException:
        channel.close()
        for fd in fds:
            os.close(fd)
        raise
    finally:
        theirs.close()
    os.close(out_w)
    os.close(err_w)
    return StartedWorker(worker, channel, PipeSource(out_r), PipeSource(err_r))


class _InheritingSpawner:
    """Starts workers that inherit their descriptors."""

    def start(self, name: str) -> StartedWorker:
        return on_descriptors(
            lambda channel_fd, out_fd, err_fd: self._start(channel_fd, out_fd, err_fd, name)
        )

    def _start(self, channel_fd: int, out_fd: int, err_fd: int, name: str) -> WorkerProcess:
        """Start one worker on these descriptors, which stay the caller's."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is shared."""


class ZygoteSpawner(_InheritingSpawner):
    """Forks of the clean zygote."""

    def __init__(self, modules: frozenset[str] = frozenset()) -> None:
        self._zygote = current_zygote(modules)

    def _start(self, channel_fd: int, out_fd: int, err_fd: int, name: str) -> WorkerProcess:
        exit_r, exit_w = os.pipe()
        try:
            pid = self._zygote.fork(name, (channel_fd, out_fd, err_fd, exit_w))
        except BaseException:
            os.close(exit_r)
            raise
        finally:
            os.close(exit_w)
        return _Forked(self._zygote.signal, pid, exit_r)


class _Forked:
    def __init__(self, send_signal: object, pid: int, exit_fd: int) -> None:
        self._send_signal = send_signal
        self.pid = pid
        self._exit_fd = exit_fd

    def fileno(self) -> int:
        return self._exit_fd

    def exitcode(self) -> int | None:
        data = os.read(self._exit_fd, EXIT_STATUS.size)
        if len(data) < EXIT_STATUS.size:
            return None  # the zygote is gone, and its workers with it
        code: int = EXIT_STATUS.unpack(data)[0]
        return code

    def signal(self, signum: int, *, group: bool = False) -> None:
        self._send_signal(self.pid, signum, group=group)  # type: ignore[operator]

    def close(self) -> None:
        os.close(self._exit_fd)


class Shared:
    """The process of a rank that is a thread of another rank's worker, whose process it is to signal and to
    end.
    """

    def __init__(self, process: WorkerProcess) -> None:
        self._process = process
        self.pid = process.pid

    def fileno(self) -> int:
        return self._process.fileno()

    def exitcode(self) -> int | None:
        """Told once, to the one whose process it is."""
        return None

    def signal(self, signum: int, *, group: bool = False) -> None:
        """Nothing: the process is signalled once, as the other rank's."""

    def close(self) -> None:
        """Nothing: it isn't ours."""


class SpawnSpawner(_InheritingSpawner):
    """Fresh interpreters: slower, and right wherever forking is not."""

    def _start(self, channel_fd: int, out_fd: int, err_fd: int, name: str) -> WorkerProcess:
        code = (
            f"import sys; sys.path[:] = {process.absolute_import_path()!r}; "
            "from nbaccel.launch.group.spawners import _fresh_worker; _fresh_worker()"
        )
        words = [str(number) for number in (channel_fd, out_fd, err_fd, os.getpid())]
        try:
            child = subprocess.Popen(  # noqa: S603  # our own text
                [sys.executable, "-c", code, *words, name],
                pass_fds=(channel_fd, out_fd, err_fd),
                stdin=subprocess.DEVNULL,
                stdout=out_fd,
                stderr=err_fd,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"a worker process could not be started: {error}") from error
        return _Child(child.pid, child)


class ForkSpawner(_InheritingSpawner):
    """Forks of the kernel as it is, with all that earlier cells did to it.

    Raises:
        LaunchError: a GPU is in use by this process; its state doesn't survive a fork.
    """

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            raise LaunchError(
                "start_method='fork': this process uses CUDA already, and a fork of it can't; "
                "leave start_method out, and workers start clean"
            )
        threads = process.parallel_threads()
        if threads:
            notices.warn(
                f"start_method='fork': this process has run parallel work, {threads} OpenMP or other native "
                f"thread{'s' if threads > 1 else ''} of it would be missing in the workers, which may hang; "
                "leave start_method out, and workers start clean"
            )

    def _start(self, channel_fd: int, out_fd: int, err_fd: int, name: str) -> WorkerProcess:
        if sys.platform == "win32":
            raise NotImplementedError("Windows has no fork")
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            raise LaunchError(f"a worker process could not be forked: {error}") from error
        if pid == 0:
            try:
                _close_all_but(channel_fd, out_fd, err_fd)
                _forget_exit_handlers()
                from nbaccel.launch.worker.worker import main

                main(channel_fd, out_fd, err_fd, parent, name)
            finally:
                os._exit(1)
        return _Child(pid)


def of(start_method: str, modules: frozenset[str]) -> Spawner:
    """The spawner for one of :data:`nbaccel.config.START_METHODS`.

    Args:
        start_method: how workers start.
        modules: what they import anyway, worth importing before a fork.

    Raises:
        LaunchError: this process can't start workers in that way.
    """
    if process.is_portable():
        if start_method in ("fork", "zygote"):
            raise LaunchError(
                f"start_method={start_method!r}: this platform has no fork; leave start_method out, or "
                "say 'spawn'"
            )
        from nbaccel.launch.group.spawner_portable import PortableSpawner

        return PortableSpawner()
    if start_method == "zygote" and not hasattr(os, "waitid"):
        raise LaunchError(
            "start_method='zygote': this Python can't watch children as the zygote does (macOS before "
            "Python 3.13); leave start_method out"
        )
    if start_method == "fork":
        return ForkSpawner()
    if start_method == "spawn" or (start_method == "auto" and not process.forks_safely()):
        return SpawnSpawner()
    return ZygoteSpawner(modules)


class _Child:
    """A child of this very process."""

    def __init__(self, pid: int, handle: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        # Kept, since subprocess reaps the children of handles that nobody keeps.
        self._handle = handle
        self._watch = process.ExitWatch(pid)
        self._reaped = False

    def fileno(self) -> int:
        return self._watch.fileno()

    def exitcode(self) -> int | None:
        try:
            # Its group goes before it is reaped: until then the pid is its own.
            process.kill_group(self.pid, process.KILL)
            _, status = os.waitpid(self.pid, 0)
            process.await_group_gone(self.pid, _GROUP_END_TIMEOUT)
        except ChildProcessError:
            return None  # somebody else in this process waited for all children
        finally:
            self._reaped = True
        code = os.waitstatus_to_exitcode(status)
        if self._handle is not None:
            self._handle.returncode = code
        return code

    def signal(self, signum: int, *, group: bool = False) -> None:
        if self._reaped or self._watch.has_ended():
            return
        if group:
            process.kill_group(self.pid, signum)
        else:
            os.kill(self.pid, signum)  # our child and not reaped: the pid is its own

    def close(self) -> None:
        self._watch.close()


def _fresh_worker() -> NoReturn:
    from nbaccel.launch.worker.worker import main

    channel_fd, out_fd, err_fd, parent = (int(word) for word in sys.argv[1:5])
    main(channel_fd, out_fd, err_fd, parent, sys.argv[5])


def _forget_exit_handlers() -> None:
    """In a fork of the kernel: what the kernel wants done at its own end is not ours to do.

    Temporary directories of the kernel would be removed, connections closed. The handlers of the
    standard library itself are put back, for what the worker's code will register with them.
    """
    # The handlers are reached through private names, since there is no other way to them.
    atexit._clear()  # noqa: SLF001
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001
        finalizer.atexit = False
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]  # noqa: SLF001
    multiprocessing.util._finalizer_registry.clear()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]  # noqa: SLF001
    multiprocessing.process._children.clear()  # type: ignore[attr-defined]  # noqa: SLF001


def _close_all_but(*keep: int) -> None:
    """Close the kernel's sockets and files in a fork of it; they are not the worker's."""
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))
