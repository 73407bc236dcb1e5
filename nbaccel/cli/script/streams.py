"""What scripts write: read from their pipes in one thread, shown as everywhere else.

A single process keeps this process's own standard output: bytes, terminals and pipes of a shell then work
as without a launcher; only its errors are read along, for the summary. Several are read line by line and
labelled by :class:`~nbaccel.launch.output.router.Router`.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from nbaccel.launch.output.router import Router

_CHUNK = 1 << 16
_TAIL_SIZE = 8000
_TAIL_LINES = 20


class Sink(Protocol):
    """Where bytes of a rank go."""

    def feed(self, rank: int, is_err: bool, data: bytes) -> None:
        """Take what was read."""

    def due(self) -> float:
        """``time.monotonic()`` at which :meth:`tick` should be called."""

    def tick(self) -> None:
        """Do what is due."""

    def flush(self) -> None:
        """Write what was collected."""

    def close(self) -> Exception | None:
        """Everything was fed."""

    def stderr_tail(self, rank: int) -> str:
        """The last lines of a rank's standard error."""

    def show_kept(self, rank: int) -> None:
        """Write what a rank had written while it was not shown."""


class PassThrough:
    """Hands one process's errors on as they come, and keeps the last lines."""

    def __init__(self) -> None:
        self._tail: deque[bytes] = deque()
        self._size = 0

    def feed(self, rank: int, is_err: bool, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(2, view) :]
        self._tail.append(data)
        self._size += len(data)
        while self._size - len(self._tail[0]) > _TAIL_SIZE:
            self._size -= len(self._tail.popleft())

    def due(self) -> float:
        return float("inf")

    def tick(self) -> None:
        """Nothing is ever kept back."""

    def flush(self) -> None:
        """Nothing is ever kept back."""

    def close(self) -> Exception | None:
        return None

    def stderr_tail(self, rank: int) -> str:
        text = b"".join(self._tail).decode(errors="backslashreplace")
        return "".join(f"{line}\n" for line in text.splitlines()[-_TAIL_LINES:])

    def show_kept(self, rank: int) -> None:
        """Everything was shown."""


class Streams(LogsSpecs):
    """Pipes for an agent's workers, and the thread that reads them.

    Args:
        sink: where what is read goes.
        is_direct: standard output is this process's own, and so is the error stream if it is a terminal.
    """

    def __init__(self, sink: Sink, *, is_direct: bool) -> None:
        super().__init__()
        self._sink = sink
        self._keeps_stdout = is_direct
        self._keeps_stderr = is_direct and os.isatty(2)
        self._selector = selectors.DefaultSelector()
        self._write_ends: list[int] = []
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._is_over = False
        self._trouble: BaseException | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._pump, name="nbaccel-script-output")
        self._thread.start()

    @property
    def root_log_dir(self) -> str:
        """The agent writes no logs of its own."""
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Pipes for one round of workers, as the paths that the agent opens for them."""
        self._close_write_ends()
        outs, errs = {}, {}
        for local_rank, environ in envs.items():
            rank = int(environ["RANK"])
            outs[local_rank] = "" if self._keeps_stdout else self._new_pipe(rank, is_err=False)
            errs[local_rank] = "" if self._keeps_stderr else self._new_pipe(rank, is_err=True)
        return LogsDest(
            stdouts=outs,
            stderrs=errs,
            tee_stdouts={},
            tee_stderrs={},
            error_files=dict.fromkeys(envs, os.devnull),
        )

    def close(self) -> None:
        """Read what is left, and stop. The workers are gone by now.

        Raises:
            OSError: this process's own output could not be written, or a log.
        """
        with self._lock:
            self._is_over = True
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._close_write_ends()
        os.close(self._wake_read)
        os.close(self._wake_write)
        for key in list(self._selector.get_map().values()):
            if key.fd != self._wake_read:
                os.close(key.fd)
        self._selector.close()
        trouble = self._sink.close() or self._trouble
        if trouble is not None:
            raise trouble

    def _new_pipe(self, rank: int, *, is_err: bool) -> str:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._write_ends.append(write_end)
        with self._lock:
            self._selector.register(read_end, selectors.EVENT_READ, (rank, is_err))
        os.write(self._wake_write, b"x")
        return f"/dev/fd/{write_end}"

    def _close_write_ends(self) -> None:
        for end in self._write_ends:
            os.close(end)
        self._write_ends.clear()

    def _pump(self) -> None:
        while True:
            ready = self._selector.select(self._patience())
            got_some = False
            for key, _ in ready:
                if key.data is None:
                    os.read(self._wake_read, _CHUNK)
                else:
                    got_some |= self._read(key.fd, *key.data)
            self._guarded(self._sink.tick)
            # All writers are gone when it is over: what can be read now is all that will ever come.
            if self._is_over and not got_some:
                self._guarded(self._sink.flush)
                return

    def _patience(self) -> float | None:
        if self._is_over:
            return 0.0
        wait = self._sink.due() - time.monotonic()
        return None if wait == float("inf") else max(0.0, wait)

    def _read(self, fd: int, rank: int, is_err: bool) -> bool:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            with self._lock:
                self._selector.unregister(fd)
            os.close(fd)
            return False
        self._guarded(lambda: self._sink.feed(rank, is_err, data))
        return True

    def _guarded(self, action: Callable[[], None]) -> None:
        """Go on reading whatever becomes of the text: a worker must never block on a full pipe."""
        try:
            action()
        except (OSError, ValueError) as error:
            self._trouble = self._trouble or error


def router_for(mode: str, ranks: range, *, log_dir: str | None) -> Router:
    """The usual way of showing what ranks write."""
    return Router(mode, ranks, main_rank=ranks.start, log_dir=log_dir)


def writes_to_own_terminal() -> bool:
    """Whether this process's streams are the real ones, and not a notebook's or a test's."""
    return sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__
