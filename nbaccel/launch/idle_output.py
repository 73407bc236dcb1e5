"""Reads workers' pipes between two tasks, so that a thread of theirs that prints is never blocked.

What it reads is shown with the next task; of much output only the end is kept.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Sequence

from nbaccel.launch.output import Router

_READ_SIZE = 1 << 16
_KEPT_SIZE = 1 << 22


class IdleOutput:
    """A thread that sleeps in the system until a worker writes; stopped before the next task."""

    def __init__(self, streams: Sequence[tuple[int, bool, int]]) -> None:
        """Start reading.

        Args:
            streams: rank, whether it is standard error, and the descriptor of each open pipe.
        """
        self._streams = {fd: (rank, is_err) for rank, is_err, fd in streams}
        self._read: deque[tuple[int, bool, bytes]] = deque()
        self._size = 0
        self._wake_r, self._wake_w = os.pipe()
        self._thread = threading.Thread(target=self._run, name="nbaccel-idle-output", daemon=True)
        self._thread.start()

    def stop(self, router: Router | None) -> None:
        """Stop reading; hand on what was read."""
        os.close(self._wake_w)
        self._thread.join()
        os.close(self._wake_r)
        if router is not None:
            for rank, is_err, data in self._read:
                router.feed(rank, is_err, data)

    def _run(self) -> None:
        poller = select.poll()
        for fd in (*self._streams, self._wake_r):
            poller.register(fd, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == self._wake_r:
                    return
                try:
                    data = os.read(fd, _READ_SIZE)
                except BlockingIOError:
                    continue
                if data:
                    self._keep(*self._streams[fd], data)
                else:
                    poller.unregister(fd)  # its worker has ended; the next task will notice

    def _keep(self, rank: int, is_err: bool, data: bytes) -> None:
        self._read.append((rank, is_err, data))
        self._size += len(data)
        while self._size > _KEPT_SIZE:
            self._size -= len(self._read.popleft()[2])
