"""A rank that is a thread of another rank's worker, as the second core of a TPU chip of v2 or v3 has to be.

::

    process ──▶ main thread      first rank     channel, stdout, stderr of its own
            ──▶ thread rank-1    second rank    channel, stdout, stderr of its own, service thread

Each has a namespace of its own for what it is sent, and finds its own streams in ``sys.stdout`` and
``sys.stderr``. What a process has only once is shared: environment, working folder, imported modules,
notebook classes, what user code puts in place of ``sys.stdout``, fd 1 and 2 (the first rank's), torch's
generator on the CPU. Must not touch signals: Python serves them in the main thread, which passes an
interrupt on.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any, NoReturn, cast

from nbaccel.launch.payload import pickling
from nbaccel.launch.traces import stacks
from nbaccel.launch.transport import messages
from nbaccel.launch.transport.channel import Channel
from nbaccel.launch.worker import display
from nbaccel.launch.worker.streams import RankStreams, flush_streams
from nbaccel.launch.worker.worker import Worker


class Replica(Worker):
    """Takes orders from a channel of its own, in a thread of its own."""

    def __init__(self, setup: messages.Setup, channel_fd: int, out_fd: int, err_fd: int) -> None:
        """Take over the descriptors.

        Args:
            setup: what this rank takes on; what concerns the whole process is done already.
            channel_fd: this rank's end of its channel.
            out_fd: what it prints goes there.
            err_fd: what it writes to standard error goes there.
        """
        self.streams = RankStreams(out_fd, err_fd)
        super().__init__(Channel.from_fd(channel_fd), self.streams.turns)
        self._setup = setup
        self._task_thread = threading.Thread(
            target=self._live, name=f"{stacks.REPLICA_THREADS}{setup.place.rank}"
        )

    def start(self) -> None:
        """Begin to take orders."""
        self._task_thread.start()

    def interrupt(self) -> None:
        """Raise ``KeyboardInterrupt`` in user code, as soon as that runs Python again."""
        if self._runs_user_code and self._thread is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread), ctypes.py_object(KeyboardInterrupt)
            )

    def _live(self) -> None:
        self._thread = threading.get_ident()
        try:
            self._take_rank(self._setup)
            self.streams.turns.start(self._setup.marks_secret)
            _assign(self._thread, self.streams)
            outlet = display.current_outlet()
            assert outlet is not None
            outlet.delegate(self._thread, display.Outlet(self._channel.send, self.streams.turns))
            main = sys.modules["__main__"]
            pickling.use_globals({"__name__": "__main__", "__builtins__": vars(main)["__builtins__"]})
            self._service.start()
            self._obey()
        except BaseException:  # noqa: BLE001  # nobody would hear of it: the rank's end is the process's
            sys.excepthook(*sys.exc_info())
            flush_streams()
            os._exit(1)

    def _be_interruptible(self) -> None:
        """Signals are the main thread's."""

    def _leave(self) -> NoReturn:
        raise AssertionError("a rank that is a thread ends with its function")


class ThreadStream:
    """A standard stream that is another one in each thread that was given one."""

    def __init__(self, first: Any) -> None:
        self._first = first
        self._streams: dict[int, Any] = {}

    def assign(self, thread: int, stream: Any) -> None:
        """What this thread writes goes to ``stream``."""
        self._streams[thread] = stream

    def _mine(self) -> Any:
        return self._streams.get(threading.get_ident(), self._first)

    def write(self, text: str) -> int:
        written: int = self._mine().write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mine(), name)


def share_streams() -> None:
    """Make this process's standard streams those of the thread that uses them."""
    if not isinstance(cast("object", sys.__stdout__), ThreadStream):
        sys.stdout = sys.__stdout__ = cast("Any", ThreadStream(sys.stdout))  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = cast("Any", ThreadStream(sys.stderr))  # type: ignore[misc]


def _assign(thread: int, streams: RankStreams) -> None:
    # The original ones: user code of another rank may have put something else in place meanwhile.
    for shared, own in ((sys.__stdout__, streams.out), (sys.__stderr__, streams.err)):
        cast("ThreadStream", shared).assign(thread, own)
