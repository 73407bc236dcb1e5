"""Reads workers' pipes between two tasks, so that a thread of theirs that prints is never blocked.

What it reads is shown with the next task; of much output only the end is kept. One thread serves a
group for all its life, because to start and to join one takes longer than a small task: while a
task runs it stays away from the pipes, and needs not be woken for that.
"""

from __future__ import annotations

import selectors
import threading
from collections import deque
from collections.abc import Sequence

from nbaccel.launch.output.byte_sources import ByteSource
from nbaccel.launch.output.router import Router
from nbaccel.launch.system.wakeup import Wakeup

_KEPT_SIZE = 1 << 22


class IdleOutput:
    """A thread that sleeps in the system until a worker writes. It begins paused."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[int, bool, ByteSource]] = {}
        self._read: deque[tuple[int, bool, bytes]] = deque()
        self._size = 0
        self._reads = False
        self._closed = False
        self._change = threading.Condition()
        """Held while a pipe is read, and while the above is changed."""
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name="nbaccel-idle-output", daemon=True)
        self._thread.start()

    def resume(self, streams: Sequence[tuple[int, bool, ByteSource]]) -> None:
        """Read from now on.

        Args:
            streams: rank, whether it is standard error, and the stream, of each that is open.
        """
        with self._change:
            self._streams = {source.fileno(): (rank, is_err, source) for rank, is_err, source in streams}
            self._reads = True
            self._change.notify()

    def pause(self, router: Router | None) -> None:
        """Leave the pipes alone from now on; hand on what was read."""
        with self._change:
            self._reads = False
            read, self._read, self._size = self._read, deque(), 0
        if router is not None:
            for rank, is_err, data in read:
                router.feed(rank, is_err, data)

    def close(self) -> None:
        """End the thread; before the pipes are closed."""
        with self._change:
            self._closed = True
            self._reads = False
            self._change.notify()
        self._wakeup.wake()
        self._thread.join()
        self._wakeup.close()

    def _run(self) -> None:
        while self._wait_until_reading():
            with selectors.DefaultSelector() as selector:
                with self._change:
                    watched = frozenset(self._streams)
                for fd in (*watched, self._wakeup.fileno()):
                    selector.register(fd, selectors.EVENT_READ)
                # It may sleep here through whole tasks, which is why streams are read under the lock only.
                while self._read_ready({key.fd for key, _ in selector.select()}, watched):
                    pass

    def _wait_until_reading(self) -> bool:
        """Whether there is to be read; False: it is over."""
        with self._change:
            self._change.wait_for(lambda: self._reads or self._closed)
            return not self._closed

    def _read_ready(self, ready: set[int], watched: frozenset[int]) -> bool:
        """Read what can be read, unless paused; says whether the same pipes are to be waited for again."""
        with self._change:
            if not self._reads or self._streams.keys() != watched:
                return False
            for fd in ready:
                rank, is_err, source = self._streams[fd]
                try:
                    data = source.read()
                except BlockingIOError:
                    continue
                if data:
                    self._keep(rank, is_err, data)
                else:
                    del self._streams[fd]  # its worker has ended; the next task will notice
            return self._streams.keys() == watched

    def _keep(self, rank: int, is_err: bool, data: bytes) -> None:
        self._read.append((rank, is_err, data))
        self._size += len(data)
        while self._size > _KEPT_SIZE:
            self._size -= len(self._read.popleft()[2])
