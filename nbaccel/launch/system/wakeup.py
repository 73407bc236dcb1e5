"""Something to wait on that any thread, or a signal handler, can make readable.

A pair of sockets and not a pipe, because Windows can wait for sockets only.
"""

from __future__ import annotations

import select
import socket
import sys


def is_readable(fd: int) -> bool:
    """Whether a descriptor that can be waited on has something to read, without waiting."""
    if sys.platform == "win32":
        return bool(select.select([fd], [], [], 0)[0])
    poller = select.poll()  # select() knows no descriptors beyond 1,024
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


class Wakeup:
    """Begins unreadable; becomes readable with :meth:`wake` and stays so until :meth:`clear`."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)

    def fileno(self) -> int:
        """What to wait on."""
        return self._ours.fileno()

    def sender_fileno(self) -> int:
        """For :func:`signal.set_wakeup_fd`: a byte written to it is as good as :meth:`wake`."""
        return self._theirs.fileno()

    def wake(self) -> None:
        """Make it readable. Nothing happens when it is closed."""
        try:
            self._theirs.send(b"!")
        except OSError:
            return  # full: enough of them wait to be seen; or closed, and nobody waits

    def clear(self) -> None:
        """Make it unreadable again."""
        try:
            while self._ours.recv(512):
                continue
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give up both ends."""
        self._ours.close()
        self._theirs.close()
