"""From the workers' pipes to the cell: whole lines, labelled by rank.

A router takes the bytes of each rank's two streams in the order in which they were read, and writes
text to ``sys.stdout`` and ``sys.stderr`` of the kernel, in the thread of the cell that submitted the
work. With one process everything passes as it comes. With several, a line is written when it is
whole; of text that returns to the line's start (progress bars) only the main rank's is live, the
others' last state is written when the line ends.
"""

from __future__ import annotations

import codecs
import sys
from collections import deque
from collections.abc import Mapping
from typing import TextIO

MODES = ("all", "main", "none")
"""Choices of ``output``."""

_TAIL_LINES = 20
_KEPT_LINES = 1000


class Router:
    """Output of one launch."""

    def __init__(
        self, mode: str, ranks: range, *, main_rank: int = 0, labels: Mapping[int, str] | None = None
    ) -> None:
        self._mode = mode
        # What the user wants before each line stands there, however few processes there are.
        self._labels = labels
        self._labelled = labels is not None or (len(ranks) > 1 and mode == "all")
        self._main_rank = main_rank
        self._screen = _Screen()
        self._streams = {
            (rank, is_err): _Stream(self, rank, is_err) for rank in ranks for is_err in (False, True)
        }
        self._tails: dict[int, deque[str]] = {rank: deque(maxlen=_TAIL_LINES) for rank in ranks}
        self._kept: dict[int, deque[str]] = {rank: deque(maxlen=_KEPT_LINES) for rank in ranks}

    def feed(self, rank: int, is_err: bool, data: bytes) -> None:
        """Bytes that were read from one of a rank's pipes."""
        self._streams[rank, is_err].feed(data)
        self._screen.flush()

    def end(self, rank: int, is_err: bool) -> None:
        """The pipe is at its end: what is left of an unfinished line is written."""
        self._streams[rank, is_err].end()
        self._screen.flush()

    def stderr_tail(self, rank: int) -> str:
        """The last lines of a rank's standard error."""
        return "".join(self._tails[rank])

    def show_kept(self, rank: int) -> None:
        """Write what a rank had printed while it was not shown."""
        lines = self._kept[rank]
        if lines:
            self._screen.write(True, f"[rank {rank}] ", "its output, which was not shown:\n")
            for line in lines:
                self._screen.write(True, f"[rank {rank}] ", line)
            lines.clear()
            self._screen.flush()

    # --- called by the streams ----------------------------------------------------------------

    def is_shown(self, rank: int) -> bool:
        return self._mode == "all" or (self._mode == "main" and rank == self._main_rank)

    def is_live(self, rank: int) -> bool:
        """Whether unfinished lines of this rank are written as they grow."""
        return self.is_shown(rank) and rank == self._main_rank

    @property
    def passes_through(self) -> bool:
        return not self._labelled

    def remember(self, rank: int, is_err: bool, text: str) -> None:
        if is_err:
            self._tails[rank].append(text)

    def line(self, rank: int, is_err: bool, text: str) -> None:
        self.remember(rank, is_err, text)
        if self.is_shown(rank):
            self._screen.write(is_err, self._label(rank), text)
        else:
            self._kept[rank].append(text)

    def progress(self, rank: int, is_err: bool, text: str) -> None:
        """The present state of a line that will be overwritten."""
        self._screen.overwrite(is_err, self._label(rank), text)

    def raw(self, is_err: bool, text: str) -> None:
        self._screen.raw(is_err, text)

    def _label(self, rank: int) -> str:
        if self._labels is not None:
            return self._labels[rank]
        return f"[rank {rank}] " if self._labelled else ""


class _Stream:
    """Splits one pipe's bytes into lines and states of a line."""

    def __init__(self, router: Router, rank: int, is_err: bool) -> None:
        self._router = router
        self._rank = rank
        self._is_err = is_err
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._pending = ""

    def feed(self, data: bytes, final: bool = False) -> None:
        text = self._decoder.decode(data, final)
        if self._router.passes_through and self._router.is_shown(self._rank):
            self._router.raw(self._is_err, text)
        self._pending += text
        if "\n" in text:
            *whole, self._pending = self._pending.split("\n")
            for line in whole:
                self._emit(_last_state(line) + "\n")
        if "\r" in self._pending:
            # Keep only what the line would show now: a bar may run for hours.
            self._pending = "\r" + _last_state(self._pending)
            if self._router.is_live(self._rank) and not self._router.passes_through:
                self._router.progress(self._rank, self._is_err, self._pending[1:])

    def end(self) -> None:
        self.feed(b"", final=True)
        if self._pending:
            self._emit(_last_state(self._pending) + "\n")
            self._pending = ""

    def _emit(self, line: str) -> None:
        router = self._router
        if router.passes_through and router.is_shown(self._rank):
            router.remember(self._rank, self._is_err, line)
        else:
            router.line(self._rank, self._is_err, line)


class _Screen:
    """The kernel's two streams, and whether a line is open on each."""

    def __init__(self) -> None:
        self._open: dict[bool, bool] = {False: False, True: False}
        self._touched: set[bool] = set()

    def write(self, is_err: bool, label: str, line: str) -> None:
        start = ""
        if self._open[is_err]:
            start = "\n"
            self._open[is_err] = False
        self._put(is_err, start + label + line)

    def overwrite(self, is_err: bool, label: str, text: str) -> None:
        self._open[is_err] = True
        self._put(is_err, "\r" + label + text)

    def raw(self, is_err: bool, text: str) -> None:
        self._put(is_err, text)

    def flush(self) -> None:
        for is_err in self._touched:
            self._target(is_err).flush()
        self._touched.clear()

    def _put(self, is_err: bool, text: str) -> None:
        self._target(is_err).write(text)
        self._touched.add(is_err)

    @staticmethod
    def _target(is_err: bool) -> TextIO:
        # Looked up each time: user code may replace the streams while workers run.
        return sys.stderr if is_err else sys.stdout


def _last_state(line: str) -> str:
    """What a terminal would show of a line with carriage returns in it."""
    if "\r" not in line:
        return line
    states = [state for state in line.split("\r") if state]
    return states[-1] if states else ""
