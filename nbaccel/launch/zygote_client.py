"""The kernel's side of the zygote: start it, talk to it, replace it when it no longer fits.

One root zygote a kernel. It forks, by itself, one child zygote that also imports what torch loads
at the first optimizer; further ones are asked for when a payload needs libraries by reference. The
newest clean one serves forks. Nothing here runs unless it is called: there is no thread.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import subprocess
import sys
import sysconfig
import threading
from functools import cache
from pathlib import Path
from typing import IO

from nbaccel.errors import LaunchError
from nbaccel.launch import messages
from nbaccel.launch.channel import Channel, ChannelClosed

_READY_TIMEOUT = 120.0
_PRELOAD_TIMEOUT = 60.0
_LEAVE_TIMEOUT = 0.5
_LOG_TAIL = 1 << 16

_LOAD_TIME_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHASHSEED", "TORCH_LOGS", "TORCH_CPP_LOG_LEVEL")
_LOAD_TIME_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_")
# The launcher sets this one in each worker, through torch.
_NOT_LOAD_TIME = ("OMP_NUM_THREADS",)


class Zygote:
    """A running zygote process, as the kernel sees it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.ready: messages.ZygoteReady | None = None
        self._lock = threading.Lock()

    def wait_ready(self, timeout: float) -> messages.ZygoteReady:
        """Wait until its imports are done.

        Raises:
            ChannelClosed: it ended.
            TimeoutError: it takes longer than ``timeout`` seconds.
        """
        with self._lock:
            if self.ready is None:
                message, _ = self._channel.recv(timeout)
                assert isinstance(message, messages.ZygoteReady)
                self.ready = message
            return self.ready

    def is_ready_now(self) -> bool:
        """Whether its imports are done and it may be forked, without waiting."""
        with self._lock:
            if self.ready is None:
                arrived, is_open = self._channel.poll()
                if arrived:
                    self.ready = arrived[0][0]
                elif not is_open:
                    return False
            return self.ready is not None and not self.ready.unclean

    def fork(self, name: str, fds: tuple[int, int, int, int]) -> int:
        """Fork a worker and return its pid.

        Raises:
            LaunchError: the system refused, or the zygote has ended.
        """
        with self._lock:
            try:
                self._channel.send(messages.Fork(name), fds)
                answer, _ = self._channel.recv()
            except ChannelClosed as error:
                raise LaunchError("the process that workers are forked from has ended") from error
        if isinstance(answer, messages.ForkFailed):
            raise LaunchError(
                f"a worker process could not be forked: {answer.text}; "
                "use fewer processes or free memory, and launch again"
            )
        assert isinstance(answer, messages.Forked)
        return answer.pid

    def signal(self, pid: int, signum: int, *, group: bool = False) -> None:
        """Signal a worker that it forked; nothing happens when the worker has ended."""
        try:
            self._channel.send(messages.Signal(pid, signum, group))
        except ChannelClosed:
            return  # its workers ended with it

    def fork_zygote(self, modules: frozenset[str]) -> Zygote:
        """A child zygote that imports ``modules`` as well; it isn't ready yet."""
        channel, theirs = Channel.pair()
        with theirs:
            self._channel.send(messages.ForkZygote(tuple(sorted(modules))), (theirs.fileno(),))
        return Zygote(channel)

    def is_alive(self) -> bool:
        """Whether its end of the channel is open, as far as can be told without asking."""
        with self._lock:
            if self.ready is None:
                return True  # wait_ready() will tell
            _, is_open = self._channel.poll()
            return is_open

    def close(self) -> None:
        """Give up this end; the zygote and its workers leave."""
        self._channel.close()


class _Family:
    """The root zygote of this process and its child zygotes."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.load_time_environ = _load_time_environ()
        # Its own stderr goes to a file without a name, read only when it dies.
        self.log: IO[bytes] = os.fdopen(os.memfd_create("nbaccel-zygote-log"), "rb")
        channel, theirs = Channel.pair()
        child_channel, child_theirs = Channel.pair()
        with theirs, child_theirs:
            self.process = self._start(theirs.fileno(), child_theirs.fileno())
        self.root = Zygote(channel)
        self.candidates = [Zygote(child_channel)]
        self.not_preloadable: set[str] = set()

    def _start(self, control_fd: int, child_control_fd: int) -> subprocess.Popen[bytes]:
        if not sys.executable:
            raise LaunchError(
                "sys.executable is empty, so no process can be started; use start_method='fork'"
            )
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from nbaccel.launch.zygote import bootstrap; bootstrap()"
        )
        words = [str(number) for number in (control_fd, child_control_fd, os.getpid())]
        return subprocess.Popen(  # noqa: S603  # our own text
            [sys.executable, "-c", code, *words],
            pass_fds=(control_fd, child_control_fd),
            stdin=subprocess.DEVNULL,
            stdout=self.log.fileno(),
            stderr=self.log.fileno(),
            start_new_session=True,
        )

    def newest_clean(self) -> Zygote:
        """The one with most imports that is ready at this moment; the root is waited for."""
        for candidate in reversed(self.candidates):
            if candidate.is_ready_now():
                return candidate
        self._wait_for_root()
        return self.root

    def _wait_for_root(self) -> None:
        try:
            ready = self.root.wait_ready(_READY_TIMEOUT)
        except (ChannelClosed, TimeoutError) as error:
            raise LaunchError(
                f"the process that workers are forked from did not start: {error}\n{self.log_text()}"
            ) from error
        if ready.failed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in ready.failed.items())
            raise LaunchError(f"workers can't import what they need: {reasons}")

    def preload(self, modules: frozenset[str]) -> Zygote:
        """A clean zygote that has ``modules``, as far as their imports let it stay clean."""
        best = self.newest_clean()
        assert best.ready is not None
        wanted = modules - best.ready.loaded - self.not_preloadable
        if not wanted:
            return best
        child = best.fork_zygote(wanted)
        try:
            ready = child.wait_ready(_PRELOAD_TIMEOUT)
        except (ChannelClosed, TimeoutError):
            self.not_preloadable |= wanted
            child.close()
            return best
        except BaseException:
            child.close()
            raise
        self.not_preloadable |= set(ready.failed)
        if ready.unclean:
            self.not_preloadable |= wanted
            child.close()
            return best
        self.candidates.append(child)
        return child

    def log_text(self) -> str:
        """The end of what it and its imports wrote."""
        size = os.fstat(self.log.fileno()).st_size
        start = max(0, size - _LOG_TAIL)
        return os.pread(self.log.fileno(), size - start, start).decode("utf-8", "replace")

    def is_usable(self) -> bool:
        return (
            self.process.poll() is None
            and self.root.is_alive()
            and self.load_time_environ == _load_time_environ()
        )

    def close(self) -> None:
        for member in (*self.candidates, self.root):
            member.close()
        try:
            self.process.wait(_LEAVE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()  # still busy with its first imports: it has no workers yet
            self.process.wait()
        self.log.close()


_family: _Family | None = None
_family_lock = threading.RLock()


def start_zygote() -> None:
    """Bring up the root zygote if there is none; returns at once."""
    global _family
    with _family_lock:
        if _family is not None and _family.owner != os.getpid():
            _family = None  # we are a fork of the process that owns it
        if _family is not None and not _family.is_usable():
            _family.close()
            _family = None
        if _family is None:
            _family = _Family()


def stop_zygote() -> None:
    """End the zygote and whatever it forked; a later launch starts another one."""
    global _family
    with _family_lock:
        if _family is not None and _family.owner == os.getpid():
            _family.close()
        _family = None


def current_zygote(modules: frozenset[str]) -> Zygote:
    """A clean zygote to fork from, with ``modules`` imported where that is possible.

    Raises:
        LaunchError: none could be started.
    """
    with _family_lock:
        start_zygote()
        assert _family is not None
        return _family.preload(frozenset(name for name in modules if _is_library(name)))


@cache
def _library_roots() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib"))


def _is_library(name: str) -> bool:
    """Whether a module is installed, so that it stays as it is while the kernel lives.

    Local modules are imported afresh by each worker: an edit between two launches counts. The
    standard library is cheap enough to be left out.
    """
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("nbaccel", "torch", "__main__"):
        return False
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None)
    if origin is None:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            return False
        origin = spec.origin if spec is not None else None
    if origin is None:
        return False
    path = Path(origin).resolve()
    return any(path.is_relative_to(root) for root in _library_roots())


def _load_time_environ() -> dict[str, str]:
    """Environment names that libraries read when they are loaded, which for workers is long past."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_LOAD_TIME and (name in _LOAD_TIME_NAMES or name.startswith(_LOAD_TIME_PREFIXES))
    }


def _forget_in_child() -> None:
    """In a fork of this process: the zygote is our parent's, and must not wait for our end."""
    global _family
    if _family is not None:
        for member in (*_family.candidates, _family.root):
            member.close()
        _family = None


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(stop_zygote)
