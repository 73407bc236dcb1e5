"""Workers where nothing can be forked and no socket inherited: fresh interpreters that connect back.

::

    kernel ──starts──▶ interpreter              stdin: the secret, then its end
           ◀─connects─ (loopback, authenticated) stdout, stderr: pipes, read by threads here

A worker and all that it starts are held together by a job object on Windows, which the system ends with
this process. Elsewhere (for tests) the process group stands in for it, and a worker whose connection
ends ends its group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any, Protocol

from nbaccel.errors import LaunchError
from nbaccel.launch.group.spawners import StartedWorker
from nbaccel.launch.output.byte_sources import RelayedSource
from nbaccel.launch.payload import named_files
from nbaccel.launch.system import process
from nbaccel.launch.transport import messages
from nbaccel.launch.transport.channel import ChannelClosed
from nbaccel.launch.transport.handshake import Acceptor
from nbaccel.launch.transport.tcp_channel import TcpChannel

_GROUP_END_TIMEOUT = 0.5

_CODE = (
    "import sys; sys.path[:] = {path!r}; from nbaccel.launch.worker.portable import bootstrap; bootstrap()"
)


class PortableSpawner:
    """Starts them."""

    def __init__(self) -> None:
        self._folder: str | None = None

    def start(self, name: str) -> StartedWorker:
        if self._folder is None:
            _sweep_once()
            self._folder = named_files.make_folder()
        with ExitStack() as undo:
            acceptor = Acceptor()
            undo.callback(acceptor.close)
            out_r, out_w = os.pipe()
            undo.callback(os.close, out_r)
            undo.callback(os.close, out_w)
            err_r, err_w = os.pipe()
            undo.callback(os.close, err_r)
            undo.callback(os.close, err_w)
            child = self._start(name, acceptor, out_w, err_w)
            undo.pop_all()
        channel = TcpChannel.awaited(acceptor)
        worker = _PortableWorker(child, lambda: channel.send(messages.Interrupt()))
        return StartedWorker(worker, channel, RelayedSource(out_r, out_w), RelayedSource(err_r, err_w))

    def close(self) -> None:
        if self._folder is not None:
            named_files.remove_folder(self._folder)

    def _start(self, name: str, acceptor: Acceptor, out_fd: int, err_fd: int) -> _Contained:
        if not sys.executable:
            raise LaunchError(
                "sys.executable is empty, so no process can be started; set it to python's path"
            )
        assert self._folder is not None
        code = _CODE.format(path=process.absolute_import_path())
        try:
            child = subprocess.Popen(  # noqa: S603  # our own text
                [sys.executable, "-c", code, str(acceptor.port), self._folder, name],
                stdin=subprocess.PIPE,
                stdout=out_fd,
                stderr=err_fd,
                **_platform_options(),
            )
        except OSError as error:
            raise LaunchError(f"a worker process could not be started: {error}") from error
        # It waits for the secret before it does anything, so it has started nothing yet.
        contained = _Contained(child)
        assert child.stdin is not None
        try:
            with child.stdin as stdin:
                stdin.write(acceptor.secret)
        except OSError as error:
            contained.end()
            raise LaunchError(f"a worker process ended at its start: {error}") from error
        return contained


class _Job(Protocol):
    """A process and what it has started."""

    def kill(self) -> None:
        """End all of them."""

    def close(self) -> None:
        """No more is to be ended."""


class _GroupJob:
    """The process group that a child leads, which isn't reaped yet."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def kill(self) -> None:
        process.kill_group(self._pid, process.KILL)

    def close(self) -> None:
        process.await_group_gone(self._pid, _GROUP_END_TIMEOUT)


class _Contained:
    """A child, and the job that it and its descendants are in."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.job: _Job
        if sys.platform == "win32":
            from nbaccel.launch.system.windows import JobObject

            try:
                self.job = JobObject(int(child._handle))  # type: ignore[attr-defined]  # noqa: SLF001
            except OSError as error:
                child.kill()
                child.wait()
                raise LaunchError(f"a worker process could not be put in a job object: {error}") from error
        else:
            self.job = _GroupJob(child.pid)

    def end(self) -> int:
        """Leave nobody of them; the exit code of the child."""
        self.job.kill()
        code = self.child.wait()
        self.job.close()
        return code


class _PortableWorker:
    """A worker that is interrupted by a message, and otherwise ended."""

    def __init__(self, contained: _Contained, interrupt: Callable[[], None]) -> None:
        self.pid = contained.child.pid
        self._contained = contained
        self._interrupt = interrupt
        # Where possible without reaping it: its group is ended first.
        wait = None if sys.platform == "linux" else contained.child.wait
        self._watch = process.ExitWatch(self.pid, wait)
        self._reaped = False

    def fileno(self) -> int:
        return self._watch.fileno()

    def exitcode(self) -> int | None:
        self._reaped = True
        return self._contained.end()

    def signal(self, signum: int, *, group: bool = False) -> None:
        if self._reaped or self._watch.has_ended():
            return
        if signum == signal.SIGINT:
            try:
                self._interrupt()
            except ChannelClosed:
                return  # it ends, or has not come up
        elif group:
            self._contained.job.kill()
        else:
            self._contained.child.kill()

    def close(self) -> None:
        self._watch.close()


def _platform_options() -> dict[str, Any]:
    options: dict[str, Any] = {}
    if sys.platform == "win32":
        # A Ctrl-C in the kernel's console isn't for them, and they open no console of their own.
        options["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        base = getattr(sys, "_base_executable", sys.executable)
        if base != sys.executable:
            # In a virtual environment sys.executable starts a second process, which would be the worker.
            options["executable"] = base
            options["env"] = {**os.environ, "__PYVENV_LAUNCHER__": sys.executable}
    else:
        options["start_new_session"] = True
    return options


@cache
def _sweep_once() -> None:
    named_files.sweep()
