"""The kernel's zygotes: started, chosen from, replaced when they no longer fit.

::

    root (torch) ──▶ child (+ what torch loads at the first optimizer)
                 ──▶ child (+ libraries of one payload) ──▶ child (+ those of another) ...

The root forks the first child by itself. Further ones are asked for when a payload needs libraries
by reference: those are imported once, in a child, before workers are forked from it. A child whose
imports start threads, open a device, import local modules, hang or crash is thrown away; the package
that did it is left to the workers from then on, and the others aren't.

Nothing here runs unless it is called: there is no thread.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from typing import IO

from nbaccel.errors import LaunchError
from nbaccel.launch import notices
from nbaccel.launch.system import process
from nbaccel.launch.transport.channel import Channel, ChannelClosed
from nbaccel.launch.zygotes import libraries
from nbaccel.launch.zygotes.zygote import DEFERRED_MODULES
from nbaccel.launch.zygotes.zygote_handle import Zygote

READY_TIMEOUT = 120.0
"""Seconds that the root may take for its imports."""

PRELOAD_TIMEOUT = 60.0
"""Seconds that a package may take before it counts as hanging."""

_NOTICE_AFTER = 3.0
_LEAVE_TIMEOUT = 0.5
_LOG_TAIL = 1 << 16
_MAX_CHILDREN = 4


class _Family:
    """The root zygote of this process and its child zygotes."""

    def __init__(self, further_modules: Sequence[str]) -> None:
        self.owner = os.getpid()
        self.load_time_environ = libraries.load_time_environ(os.environ)
        self.log = _log_file()
        channel, theirs = Channel.pair()
        child_channel, child_theirs = Channel.pair()
        with theirs, child_theirs:
            self.process = self._start(theirs.fileno(), child_theirs.fileno(), further_modules)
        self.root = Zygote(channel)
        self.children = [Zygote(child_channel, parent=self.root)]
        self.retired: list[Zygote] = []
        self._wished: frozenset[str] = frozenset()
        self.not_preloadable: set[str] = set()
        """Packages whose import is left to the workers."""

    def _start(
        self, control_fd: int, child_control_fd: int, further_modules: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        if not sys.executable:
            raise LaunchError(
                "sys.executable is empty, so no process can be started; use start_method='fork'"
            )
        code = (
            f"import sys; sys.path[:] = {process.absolute_import_path()!r}; "
            "from nbaccel.launch.zygotes.zygote import bootstrap; bootstrap()"
        )
        words = [str(number) for number in (control_fd, child_control_fd, os.getpid())]
        return subprocess.Popen(  # noqa: S603  # our own text
            [sys.executable, "-c", code, *words, *further_modules],
            pass_fds=(control_fd, child_control_fd),
            stdin=subprocess.DEVNULL,
            stdout=self.log.fileno(),
            stderr=self.log.fileno(),
            start_new_session=True,
            cwd="/",  # any that lasts: the kernel's may be deleted while this one lives
        )

    # --- choosing -----------------------------------------------------------------------------

    def preload(self, modules: frozenset[str]) -> Zygote:
        """A clean zygote that has ``modules``, as far as their imports let it stay clean."""
        self._sort_out()
        wanted = frozenset(name for name in modules if _package(name) not in self.not_preloadable)
        best = self._best(wanted)
        missing = wanted - _loaded(best)
        if not missing:
            return best
        try:
            child = best.fork_zygote(missing, dict(os.environ), process.import_path())
        except ChannelClosed:
            return best  # its end shows when it is forked from
        if not self._await(child):
            self._start_rest(best, missing)
            return best
        self.children.append(child)
        # It may have been forked from the root, before the root's own child was ready.
        self._start_rest(child, frozenset(DEFERRED_MODULES))
        return child

    def _best(self, wanted: Collection[str]) -> Zygote:
        """The one that lacks least of ``wanted``, of equal ones that with most; the root is waited for."""
        fit = [child for child in self.children if child.is_fit()]
        if not fit:
            self._wait_for_root()
            return self.root
        return min(fit, key=lambda child: (len(set(wanted) - _loaded(child)), -len(_loaded(child))))

    def _start_rest(self, parent: Zygote, modules: Collection[str]) -> None:
        """Let a later launch find ``modules`` preloaded, without waiting for them now."""
        rest = [n for n in modules if _package(n) not in self.not_preloadable and n not in _loaded(parent)]
        if not rest:
            return
        try:
            self.children.append(parent.fork_zygote(rest, dict(os.environ), process.import_path()))
        except ChannelClosed:
            return  # it has ended meanwhile; a later launch sees that

    def _await(self, child: Zygote) -> bool:
        """Wait for the imports of a child; when they end badly, note why and throw it away."""
        left = PRELOAD_TIMEOUT
        told = False
        while True:
            patience = min(left, _NOTICE_AFTER) if not told else left
            try:
                ready = child.wait_ready(patience)
            except TimeoutError:
                left -= patience
                if left > 0:
                    notices.announce(f"importing {child.importing} once for all workers")
                    told = True
                    continue
                self._give_up(child, f"did not end within {PRELOAD_TIMEOUT:g} s")
            except ChannelClosed:
                self._give_up(child, "ended the process")
            except BaseException:
                # An interrupt. What the user didn't want to wait for isn't tried again.
                self._give_up(child, "")
                raise
            else:
                self.not_preloadable |= {_package(name) for name in ready.failed}
                if not ready.unclean:
                    return True
                self._give_up(child, "")
            return False

    def _give_up(self, child: Zygote, reason: str) -> None:
        child.look()
        if child.importing:
            self.not_preloadable.add(child.importing)
            if reason:
                notices.warn(f"importing {child.importing} {reason}; each worker imports it by itself")
        child.kill()

    def _sort_out(self) -> None:
        """Drop children that have ended, are of no use, or were made under another environment."""
        environ = libraries.import_environ(os.environ)
        kept = []
        for child in self.children:
            alive = child.look()
            if alive and child.ready is None and time.monotonic() < child.started + READY_TIMEOUT:
                kept.append(child)  # busy with its imports; nobody waits for it
            elif not alive or child.ready is None or child.ready.unclean:
                self.not_preloadable |= {child.importing} - {""}
                child.kill()
            elif child.environ is not None and child.environ != environ:
                self._retire(child)
            else:
                kept.append(child)
        with_libraries = [child for child in kept if child.environ is not None]
        for child in with_libraries[:-_MAX_CHILDREN]:
            kept.remove(child)
            self._retire(child)
        self.children = kept
        for child in [child for child in self.retired if not child.look()]:
            self.retired.remove(child)
            child.close()

    def _retire(self, child: Zygote) -> None:
        if child.ready is None:
            child.kill()
            return
        child.retire()
        self.retired.append(child)

    def _wait_for_root(self) -> None:
        try:
            ready = self.root.wait_ready(READY_TIMEOUT)
        except (ChannelClosed, TimeoutError) as error:
            raise LaunchError(
                f"the process that workers are forked from did not start: {error}\n{self.log_text()}"
            ) from error
        if ready.failed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in ready.failed.items())
            raise LaunchError(f"workers can't import what they need: {reasons}")

    def preload_in_background(self, modules: frozenset[str]) -> None:
        """Have ``modules`` imported in a child, without waiting; one at a time, and each only once."""
        new = modules - self._wished
        if not new or not self.root.is_fit():
            return
        self._sort_out()
        if any(child.ready is None for child in self.children):
            return  # busy: what is new by then is seen after the next cell
        self._wished |= new
        self._start_rest(self._best(modules), modules)

    # --- life ---------------------------------------------------------------------------------

    def log_text(self) -> str:
        """The end of what it and its imports wrote."""
        size = os.fstat(self.log.fileno()).st_size
        start = max(0, size - _LOG_TAIL)
        return os.pread(self.log.fileno(), size - start, start).decode("utf-8", "replace")

    def is_alive(self) -> bool:
        return self.process.poll() is None and self.root.look()

    def is_gone(self) -> bool:
        """Whether all of it has ended."""
        return not any(member.look() for member in (*self.children, *self.retired, self.root))

    def fits(self) -> bool:
        """Whether torch was loaded under the environment of now."""
        return self.load_time_environ == libraries.load_time_environ(os.environ)

    def retire(self) -> None:
        """Let it leave when the workers of sessions and of other threads' launches have ended."""
        for member in (*self.children, self.root):
            member.retire()

    def close(self) -> None:
        for member in (*self.children, *self.retired, self.root):
            member.close()
        try:
            self.process.wait(_LEAVE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()  # still busy with its first imports: it has no workers yet
            self.process.wait()
        self.log.close()

    def forget(self) -> None:
        """In a fork of the owner: all is the owner's, but the descriptors are ours to close."""
        for member in (*self.children, *self.retired, self.root):
            member.forget()


def _loaded(zygote: Zygote) -> frozenset[str]:
    return zygote.ready.loaded if zygote.ready is not None else frozenset()


def _package(module: str) -> str:
    return module.partition(".")[0]


_family: _Family | None = None
_retired_families: list[_Family] = []
_family_lock = threading.RLock()


def start_zygote(further_modules: Sequence[str] = ()) -> None:
    """Bring up the root zygote if there is none; returns at once.

    Args:
        further_modules: what its first child imports besides.
    """
    global _family
    with _family_lock:
        tidy()
        if _family is not None and not (_family.is_alive() and _family.fits()):
            # Also when only its root has ended: a session may live on what a child has forked.
            if not _family.root.look():
                _family.process.kill()  # it may be there and not answer
                _family.process.wait()
            _family.retire()
            _retired_families.append(_family)
            _family = None
        if _family is None:
            _family = _Family(further_modules)


def tidy() -> bool:
    """Give up what is left of zygotes that have ended; says whether none is still on its way out."""
    with _family_lock:
        for family in [family for family in _retired_families if family.is_gone()]:
            _retired_families.remove(family)
            family.close()
        if _family is not None:
            for child in [child for child in _family.retired if not child.look()]:
                _family.retired.remove(child)
                child.close()
        return not _retired_families and not (_family is not None and _family.retired)


def stop_zygote() -> None:
    """End the zygotes and whatever they forked; a later launch starts another one."""
    global _family
    with _family_lock:
        for family in (*_retired_families, *([_family] if _family is not None else [])):
            if family.owner == os.getpid():
                family.close()
        _retired_families.clear()
        _family = None


def current_zygote(modules: frozenset[str]) -> Zygote:
    """A clean zygote to fork from, with ``modules`` imported where that is possible.

    Raises:
        LaunchError: none could be started.
    """
    with _family_lock:
        start_zygote()
        assert _family is not None
        return _family.preload(libraries.preloadable(modules))


def preload_in_background(modules: frozenset[str]) -> None:
    """Have libraries imported for later launches, where there is a zygote; returns at once."""
    if not _family_lock.acquire(blocking=False):
        return  # a launch is under way, and asks for what it needs itself
    try:
        if _family is not None and _family.owner == os.getpid() and _family.is_alive():
            _family.preload_in_background(libraries.preloadable(modules))
    finally:
        _family_lock.release()


def _log_file() -> IO[bytes]:
    if not hasattr(os, "memfd_create"):
        return tempfile.TemporaryFile(prefix="nbaccel-zygote-log-", buffering=0)
    return os.fdopen(os.memfd_create("nbaccel-zygote-log", os.MFD_CLOEXEC), "w+b", buffering=0)


def _forget_in_child() -> None:
    """In a fork of this process: the zygotes are our parent's, and must not wait for our end."""
    global _family, _family_lock
    _family_lock = threading.RLock()  # another thread may have held it when we were forked
    for family in (*_retired_families, *([_family] if _family is not None else [])):
        family.forget()
    _retired_families.clear()
    _family = None


process.at_fork(after_in_child=_forget_in_child)
atexit.register(stop_zygote)
