"""A worker's standard streams: its two pipes, with marks that keep their order.

What Python code prints goes to the pipes line by line; an unfinished line follows after a moment.
Text that C code or a child process writes to fd 1 and 2 goes to the same pipes. Must not lose text
because a write was cut short by a signal, and must not leave a lock taken in a fork of the worker.
"""

from __future__ import annotations

import io
import os
import queue
import select
import sys
import threading
import time
from typing import Any

from nbaccel.launch.output import marks
from nbaccel.launch.system import process

UNFINISHED_SECONDS = 0.1
"""How long an unfinished line stays in this process."""

_BUFFER_SIZE = 1 << 16


class Turns:
    """Writes a mark to both pipes wherever output changes from one stream to the other.

    The marks go to the pipes themselves, also when user code has put something else in place of
    fd 1 or 2. Forks of the worker write no marks: they know nothing of each other's turns.
    """

    def __init__(self, out_fd: int, err_fd: int) -> None:
        self._fds = {False: out_fd, True: err_fd}
        self._secret = b""
        self._turn = 0
        self._shown = 0
        self._last = False
        self.lock = threading.RLock()
        """Held while a stream is written to. A signal handler may print while its thread holds it."""

    def start(self, secret: bytes) -> None:
        """Write marks from now on. An empty secret: write none."""
        self._secret = secret

    @property
    def are_marked(self) -> bool:
        """Whether marks are written by this process."""
        return bool(self._secret)

    def take(self, is_err: bool) -> None:
        """This stream is written to next; the caller holds the lock until that is done."""
        if is_err is self._last:
            return
        left, self._last = self._last, is_err
        if self._secret:
            self._turn += 1
            mark = marks.encode(self._secret, marks.TURN, self._turn)
            _write_all(self._fds[left], mark)
            _write_all(self._fds[is_err], mark)

    def next_display(self) -> int:
        """The number for a display that is about to be sent."""
        with self.lock:
            self._shown += 1
            return self._shown

    def mark_display(self, number: int) -> None:
        """The display with this number stands here, behind all that was printed so far."""
        with self.lock:
            self.take(is_err=False)
            _write_all(self._fds[False], marks.encode(self._secret, marks.SHOW, number))

    def hold_for_fork(self) -> None:
        self.lock.acquire()

    def release_in_parent(self) -> None:
        self.lock.release()

    def release_in_child(self) -> None:
        self._secret = b""
        self.lock = threading.RLock()


class _Pipe(io.FileIO):
    """A raw stream that writes everything it is given."""

    def __init__(self, fd: int, turns: Turns, is_err: bool) -> None:
        super().__init__(fd, "w", closefd=False)
        self._turns = turns
        self._is_err = is_err

    def write(self, data: Any) -> int:
        with self._turns.lock:
            self._turns.take(self._is_err)
            written = super().write(data)
            size = len(data)
            if written == size:
                return size
            view = memoryview(data)
            done = written or 0
            while done < size:
                if written is None:  # user code has made the pipe non-blocking, and it is full
                    select.select([], [self], [])
                written = super().write(view[done:])
                done += written or 0
            return size


class _Text(io.TextIOWrapper):
    """Line by line: what was printed before a crash must be on its way already.

    A write that leaves a line unfinished wakes the flusher. Until that has done its work nothing
    needs to be watched, and ``write`` is the base class's own, which is three times as fast.
    """

    def __init__(self, pipe: _Pipe, flusher: _Flusher) -> None:
        super().__init__(
            io.BufferedWriter(pipe, _BUFFER_SIZE),
            encoding="utf-8",
            errors="backslashreplace",
            newline="\n",
            line_buffering=True,
        )
        self._flusher = flusher
        self._write = super().write
        self.watch()

    def watch(self) -> None:
        """Look at what is written from now on."""
        self.__dict__["write"] = self._watched_write

    def _watched_write(self, text: str) -> int:
        count = self._write(text)
        if not text.endswith("\n") and self._flusher.wake():
            self.__dict__["write"] = self._write
        return count


class _Flusher:
    """Sends unfinished lines on a moment after they were written.

    Its thread starts with the first of them. It doesn't exist in forks of the worker, where an
    unfinished line waits for its end, as in any process.
    """

    def __init__(self) -> None:
        self._streams: list[_Text] = []
        self._asked = False
        self._wishes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_fork = False

    def add(self, stream: _Text) -> None:
        self._streams.append(stream)

    def wake(self) -> bool:
        """Have the streams flushed in a moment; says whether that will happen."""
        if self._asked or self._is_fork:
            return self._asked
        self._asked = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nbaccel-flush", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no thread can be had
                self._thread = None
                self._flush()
                return False
        self._wishes.put(None)
        return True

    def _run(self) -> None:
        while True:
            self._wishes.get()
            time.sleep(UNFINISHED_SECONDS)  # the rest of the line is most likely on its way
            self._flush()

    def _flush(self) -> None:
        # In this order: what is written from here on is looked at again, what came before is flushed.
        self._asked = False
        for stream in self._streams:
            stream.watch()
        with self._lock:
            for stream in self._streams:
                _flush(stream)

    def hold_for_fork(self) -> None:
        self._lock.acquire()

    def release_in_parent(self) -> None:
        self._lock.release()

    def release_in_child(self) -> None:
        self._is_fork = True
        self._lock = threading.Lock()


class RankStreams:
    """What a rank's Python code prints to: two text streams, and the marks between them."""

    def __init__(self, out_fd: int, err_fd: int, turns: Turns | None = None) -> None:
        """Write to these descriptors, which stay open as long as the process.

        Args:
            out_fd: what is printed goes there.
            err_fd: what is written to standard error goes there.
            turns: marks the order; None: made for the two.
        """
        self.turns = turns if turns is not None else Turns(out_fd, err_fd)
        flusher = _Flusher()
        self.out = _Text(_Pipe(out_fd, self.turns, is_err=False), flusher)
        self.err = _Text(_Pipe(err_fd, self.turns, is_err=True), flusher)
        flusher.add(self.out)
        flusher.add(self.err)
        for part in (self.turns, flusher):
            process.at_fork(
                before=part.hold_for_fork,
                after_in_parent=part.release_in_parent,
                after_in_child=part.release_in_child,
            )


def take_streams(out_fd: int, err_fd: int) -> Turns:
    """Make the pipes this process's fd 1 and 2, and its ``sys.stdout`` and ``sys.stderr``."""
    null = os.open(os.devnull, os.O_RDONLY)
    # Moved out of the way of 0 to 2 first; not inherited by programs that user code starts.
    marked = (_duplicate(out_fd), _duplicate(err_fd))
    os.dup2(null, 0)
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    for fd in (null, out_fd, err_fd):
        if fd > 2:
            os.close(fd)
    streams = RankStreams(1, 2, Turns(*marked))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = streams.out  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = streams.err  # type: ignore[misc]
    process.send_c_output_by_line()
    return streams.turns


def flush_streams() -> None:
    """Send on everything that was printed, also what C code has printed."""
    for stream in {id(s): s for s in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}.values():
        _flush(stream)
    process.flush_c_output()


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except Exception:  # noqa: BLE001
        return  # replaced or closed by user code, or nobody reads any more


def _duplicate(fd: int) -> int:
    if sys.platform == "win32" or process.is_portable():
        return os.dup(fd)  # behind 0 to 2, which are open, and not inherited
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [])
