"""The kernel's end of a worker's standard stream: something to wait on, and to read without waiting.

::

    POSIX      pipe ──▶ PipeSource                          the pipe itself is waited on
    portable   pipe ──▶ thread ──▶ queue ──▶ RelayedSource  a wakeup is waited on

Windows can't wait for a pipe beside other things. So a thread of the kernel's reads it there, and how
far that thread has come has to be known before one says that all has been read: the kernel writes a
mark into the pipe and waits until it has come out.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import Protocol

from nbaccel.launch.output import marks
from nbaccel.launch.system.wakeup import Wakeup

_READ_SIZE = 1 << 16
_QUEUE_SIZE = 1 << 20
"""Bytes that may wait to be read until the worker has to wait."""

_SETTLE_SECONDS = 2.0
_SYNC = b"y"


class ByteSource(Protocol):
    """Bytes of one stream of one worker."""

    def fileno(self) -> int:
        """Becomes readable when :meth:`read` has something to give, the end included."""

    def read(self) -> bytes:
        """What is there; empty at the end.

        Raises:
            BlockingIOError: nothing for now.
        """

    def settle(self) -> None:
        """After it, :meth:`read` gives all that the worker had written before, without waiting."""

    def writer_has_ended(self) -> None:
        """The worker is gone."""

    def close(self) -> None:
        """Nobody reads any more."""


class PipeSource:
    """The read end of a pipe that can be waited on. Owns the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        if sys.platform != "win32":
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        return self._fd

    def read(self) -> bytes:
        return os.read(self._fd, _READ_SIZE)

    def settle(self) -> None:
        """The system has it all."""

    def writer_has_ended(self) -> None:
        """The system says so by itself."""

    def close(self) -> None:
        os.close(self._fd)


class RelayedSource:
    """A pipe that a thread reads. Owns both ends: the write end, for marks, until the worker has ended."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._write_fd = write_fd
        self._secret = marks.new_secret()
        self._wakeup = Wakeup()
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._sent = 0
        """Number of the last mark that was written."""
        self._seen = 0
        """Number of the last mark that came out."""
        self._settling = False
        self._closed = False
        self._ended = False
        self._change = threading.Condition()
        self._thread = threading.Thread(
            target=self._relay, args=(read_fd,), name="nbaccel-relay", daemon=True
        )
        self._thread.start()

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def read(self) -> bytes:
        with self._change:
            if not self._queue:
                if self._ended:
                    return b""
                raise BlockingIOError
            data = self._queue.popleft()
            self._size -= len(data)
            if not self._queue and not self._ended:
                self._wakeup.clear()
            self._change.notify_all()
            return data

    def settle(self) -> None:
        with self._change:
            # Before the mark is written: with a full queue and a full pipe there is no room for it else.
            self._settling = True
            self._change.notify_all()
        if self._write_fd >= 0:
            self._sent += 1
            os.write(self._write_fd, marks.encode(self._secret, _SYNC, self._sent))
        with self._change:
            # At the end of a worker whose descendant has escaped with the pipe, the end doesn't come.
            self._change.wait_for(self._is_settled, _SETTLE_SECONDS)
            self._settling = False

    def writer_has_ended(self) -> None:
        self._close_write_end()

    def close(self) -> None:
        self._close_write_end()
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join(_SETTLE_SECONDS)
        self._wakeup.close()

    def _is_settled(self) -> bool:
        return self._ended or (self._write_fd >= 0 and self._seen >= self._sent)

    def _close_write_end(self) -> None:
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def _relay(self, read_fd: int) -> None:
        finder = marks.MarkFinder(self._secret)
        while data := os.read(read_fd, _READ_SIZE):
            for piece in finder.feed(data):
                self._take(piece)
        os.close(read_fd)
        rest = finder.end()
        if rest:
            self._take(rest)
        with self._change:
            self._ended = True
            self._change.notify_all()
        self._wakeup.wake()

    def _take(self, piece: bytes | marks.Mark) -> None:
        with self._change:
            if isinstance(piece, marks.Mark):
                self._seen = piece.number
                self._change.notify_all()
                return
            self._change.wait_for(lambda: self._size < _QUEUE_SIZE or self._settling or self._closed)
            if self._closed:
                return  # read on all the same, so that no writer is held up
            self._queue.append(piece)
            self._size += len(piece)
            if len(self._queue) == 1:
                self._wakeup.wake()
