"""The zygote: a clean process that workers are forked from.

::

    kernel ──control channel──▶ zygote ──fork──▶ worker (leader of its own session)
       ▲                          │
       └──exit-status pipe of each worker, written when the zygote has reaped it

It has imported torch, has run no tensor op, has touched no device and has one Python thread. So a
fork of it is as good as a fresh interpreter, whatever the kernel did, and costs milliseconds.

Invariants:

* One thread. No user code runs here, and nothing is unpickled but messages of the kernel's.
* A worker's process group is killed before the worker is reaped, so that its pid can't have been
  reused and no grandchild outlives it. Signals go only to workers that aren't reaped yet.
* When the kernel ends, however it ends, every worker's group is killed and the zygote leaves.
* An import that starts threads or opens a device happens in a child zygote, which reports itself
  unclean and is thrown away; this one stays as it was.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import struct
import sys
import time
import warnings
import weakref
from collections.abc import Sequence
from typing import NoReturn

from nbaccel.launch.system import process
from nbaccel.launch.transport import messages
from nbaccel.launch.transport.channel import Channel
from nbaccel.launch.zygotes import libraries

BASE_MODULES = (
    "torch",
    "torch.distributed",
    # DDP's constructor imports this one, and its defaults would then hold on to the process group.
    "torch.distributed.nn",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch.utils.data.distributed",
    "nbaccel.launch.worker.worker",
    "nbaccel.accelerator",
)
"""Imported before the first fork."""

DEFERRED_MODULES = ("torch._dynamo",)
"""Imported in a child zygote while nobody waits: torch imports it at the first optimizer, and that
costs as much as torch itself."""

SHELL_MODULES = ("nbaccel.launch.zygotes.shell_warmup",)
"""The same for a kernel whose cells will run on workers. Each worker pays for what it is forked with, so
that kernels which only launch functions go without."""

_GROUP_END_TIMEOUT = 1.0
_GROUP_END_CHECK_MS = 50

EXIT_STATUS = struct.Struct("!i")
"""What an exit-status pipe carries: ``os.waitstatus_to_exitcode`` of the worker."""


def main(
    control_fd: int, child_control_fd: int, kernel_pid: int, further_modules: Sequence[str] = ()
) -> NoReturn:
    """Entry point of the fresh interpreter that becomes the first zygote.

    Args:
        control_fd: this zygote's end of its control channel.
        child_control_fd: control channel for the child zygote with :data:`DEFERRED_MODULES`; -1
            for none.
        kernel_pid: the process whose end is our end.
        further_modules: what that child zygote imports besides.
    """
    process.default_signal_mask()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*", category=DeprecationWarning)
    process.adopt_orphans()
    zygote = Zygote(Channel.from_fd(control_fd), kernel_pid)
    # While imports run nobody looks at the channel.
    process.die_with_parent(kernel_pid)
    failed = libraries.import_all(BASE_MODULES)
    process.outlive_parent()
    zygote.report_ready(failed, libraries.uncleanness())
    if child_control_fd >= 0:
        packages = tuple(filter(None, (DEFERRED_MODULES, tuple(further_modules))))
        request = messages.ForkZygote(packages, dict(os.environ), tuple(sys.path))
        zygote.fork_zygote(request, child_control_fd)
    zygote.serve()


class Zygote:
    """Serves the control channel until the kernel is gone."""

    def __init__(self, control: Channel, kernel_pid: int) -> None:
        self._control = control
        self._kernel_pid = kernel_pid
        self._kernel = _open_pidfd(kernel_pid)
        self._exit_pipes: dict[int, int] = {}  # worker pid -> write end of its exit-status pipe
        self._ending: dict[int, tuple[int, int, float]] = {}
        """Reaped workers whose group isn't empty yet: pid -> exit-status pipe, code, latest time to tell."""
        self._zygotes: set[int] = set()
        """Pids of forked zygotes that aren't reaped yet."""
        self._retiring = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)

    def report_ready(self, failed: dict[str, str], unclean: str) -> None:
        """Tell the kernel what this zygote is good for."""
        # What libraries want finalised at the interpreter's end (torch: thousands of operator
        # registrations) is this process's, not its forks', whom it would cost 50 ms each.
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001
            finalizer.atexit = False
        # Objects that live now are shared by all forks; keep the collector's hands off them.
        gc.collect()
        gc.freeze()
        self._control.send(messages.ZygoteReady(os.getpid(), frozenset(sys.modules), failed, unclean))

    def serve(self) -> NoReturn:
        """Wait for requests, for children's ends and for the kernel's end."""
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLIN)
        poller.register(self._wake_r, select.POLLIN)
        if self._kernel is not None:
            poller.register(self._kernel, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(_GROUP_END_CHECK_MS if self._ending else None)}
            if self._wake_r in ready:
                self._drain_wakeups()
            self._reap()
            self._tell_ends()
            if self._kernel is not None and self._kernel in ready:
                self._leave()
            if self._control.fileno() in ready:
                requests, is_open = self._control.poll()
                for request, tickets in requests:
                    self._handle(request, [int(fd) for fd in tickets])
                if not is_open:
                    self._leave()
            if self._is_done():
                self._leave()

    def fork_zygote(self, request: messages.ForkZygote, control_fd: int) -> None:
        """A child zygote with further modules; it reports on its own control channel."""
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            # The kernel sees the end of the channel, and does without; our workers know nothing of it.
            os.close(control_fd)
            return
        if pid:
            os.close(control_fd)
            self._zygotes.add(pid)
            return
        try:
            self._become_child()
            os.setpgid(0, 0)  # what its imports start goes with it
            child = Zygote(Channel.from_fd(control_fd), self._kernel_pid)
            process.die_with_parent(parent)
            process.adopt_orphans()
            child.import_and_report(request)
            process.outlive_parent()
            child.serve()
        finally:
            os._exit(1)

    def import_and_report(self, request: messages.ForkZygote) -> None:
        """Import package by package, up to the first one after which this process must not be forked."""
        os.environ.clear()
        os.environ.update(request.environ)
        sys.path[:] = request.path
        importlib.invalidate_caches()
        cleanness = libraries.Cleanness()
        failed: dict[str, str] = {}
        fault = ""
        for package in request.packages:
            self._control.send(messages.Importing(os.getpid(), package[0].partition(".")[0]))
            failed |= libraries.import_all(package)
            fault = cleanness.fault()
            if fault:
                break
        self.report_ready(failed, fault)

    def _handle(self, request: object, fds: list[int]) -> None:
        if isinstance(request, messages.Fork):
            self._fork_worker(request, fds)
        elif isinstance(request, messages.ForkZygote):
            self.fork_zygote(request, fds[0])
        elif isinstance(request, messages.Signal):
            self._signal(request)
        elif isinstance(request, messages.EndZygote):
            self._end_zygote(request.pid)
        elif isinstance(request, messages.Retire):
            self._retiring = True
        else:
            raise TypeError(f"the zygote does not know {type(request).__name__}")

    def _fork_worker(self, request: messages.Fork, fds: list[int]) -> None:
        channel_fd, out_fd, err_fd, exit_fd = fds
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            for fd in fds:
                os.close(fd)
            self._control.send(messages.ForkFailed(error.errno or 0, error.strerror or str(error)))
            return
        if pid == 0:
            try:
                os.close(exit_fd)
                self._become_child()
                _reseed()
                from nbaccel.launch.worker.worker import main as worker_main

                worker_main(channel_fd, out_fd, err_fd, parent, request.name)
            finally:
                os._exit(1)
        for fd in (channel_fd, out_fd, err_fd):
            os.close(fd)
        self._exit_pipes[pid] = exit_fd
        self._control.send(messages.Forked(pid))

    def _become_child(self) -> None:
        """Drop what belongs to this zygote alone; runs in a fresh fork."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        ending = (exit_fd for exit_fd, _, _ in self._ending.values())
        for fd in (self._wake_r, self._wake_w, *self._exit_pipes.values(), *ending):
            os.close(fd)
        self._ending.clear()
        if self._kernel is not None:
            os.close(self._kernel)
        self._exit_pipes.clear()
        self._zygotes.clear()

    def _signal(self, request: messages.Signal) -> None:
        if request.pid not in self._exit_pipes:
            return  # reaped already: the pid may belong to somebody else by now
        if request.group:
            process.kill_group(request.pid, request.signum)
        else:
            os.kill(request.pid, request.signum)

    def _end_zygote(self, pid: int) -> None:
        if pid in self._zygotes:  # not reaped yet: the pid is still its own
            process.kill_group(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)

    def _is_done(self) -> bool:
        return self._retiring and not (self._exit_pipes or self._ending or self._zygotes)

    def _reap(self) -> None:
        """Collect every child that has ended; orphans that we adopted are collected too."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            exit_fd = self._exit_pipes.pop(pid, None)
            if exit_fd is not None or pid in self._zygotes:
                process.kill_group(pid, signal.SIGKILL)
            self._zygotes.discard(pid)
            _, status = os.waitpid(pid, 0)
            if exit_fd is not None:
                code = os.waitstatus_to_exitcode(status)
                self._ending[pid] = (exit_fd, code, time.monotonic() + _GROUP_END_TIMEOUT)

    def _tell_ends(self) -> None:
        """Tell the kernel of workers whose whole group is gone: grandchildren die a moment later.

        We are the one who adopts them, so each of their ends wakes us too.
        """
        for pid, (exit_fd, code, latest) in list(self._ending.items()):
            if process.group_is_gone(pid) or time.monotonic() > latest:
                if len(self._exit_pipes) + len(self._ending) == 1:
                    self._end_orphans()
                del self._ending[pid]
                self._publish(exit_fd, code)

    def _end_orphans(self) -> None:
        """With the last worker: end descendants of workers that had left their group (daemons).

        Each worker leads a session, and what it has started can't come back into ours. What is in ours
        isn't a worker's: a zygote that was forked from one of our children and has lost its parent.
        """
        ours = os.getsid(0)
        for pid in process.child_pids():
            if pid not in self._zygotes and pid not in self._exit_pipes and os.getsid(pid) != ours:
                os.kill(pid, signal.SIGKILL)  # our child and not reaped: the pid is its own

    @staticmethod
    def _publish(exit_fd: int, code: int) -> None:
        try:
            os.write(exit_fd, EXIT_STATUS.pack(code))
        except BrokenPipeError:
            return  # the kernel no longer cares for this worker
        finally:
            os.close(exit_fd)

    def _drain_wakeups(self) -> None:
        try:
            while os.read(self._wake_r, 512):
                continue
        except BlockingIOError:
            return

    def _leave(self) -> NoReturn:
        for pid in self._exit_pipes:
            process.kill_group(pid, signal.SIGKILL)
        # Those that had left their worker's group become our children when the worker has ended.
        latest = time.monotonic() + _GROUP_END_TIMEOUT
        while (self._exit_pipes or self._ending) and time.monotonic() < latest:
            self._reap()
            self._ending = {pid: end for pid, end in self._ending.items() if not process.group_is_gone(pid)}
            select.select([], [], [], 0.002)
        self._end_orphans()
        os._exit(0)


def _reseed() -> None:
    """In a worker: generators of libraries would repeat themselves in every one, which fresh processes don't.

    Python's own sees to that by itself.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # the CPU's; those of devices don't exist yet


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when ``pid`` ends; None where the system has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(0)
    except OSError:
        return None  # not offered by this system; end of file on the control channel remains


def bootstrap() -> NoReturn:
    """Read our arguments from the command line; the kernel has written them."""
    control_fd, child_control_fd, kernel_pid = (int(word) for word in sys.argv[1:4])
    main(control_fd, child_control_fd, kernel_pid, sys.argv[4:])


__all__ = [
    "BASE_MODULES",
    "DEFERRED_MODULES",
    "EXIT_STATUS",
    "SHELL_MODULES",
    "Zygote",
    "bootstrap",
    "main",
]
