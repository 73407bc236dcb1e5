"""From the workers' pipes to the cell: whole lines, labelled by rank, in each rank's own order.

::

    bytes of a rank's pipes ──▶ RankFeed ──▶ RankStream ──▶ Router ──▶ Screen ──▶ sys.stdout, display
                                (order)      (lines)        (labels)   (batches)

Everything is written in the thread of the cell that submitted the work. With one process text passes
as it comes. With several, a line is written when it is whole; of text that returns to the line's
start (progress bars) only the main rank's is live, the others' last state is written when the line
ends. Where nobody watches (a notebook that is executed as a batch, a pipe) bars are written as lines,
ever more rarely. Equal lines of several ranks are not merged: whether they meet in time is chance,
and what a cell prints should not depend on it.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from nbaccel.config import OUTPUT_MODES
from nbaccel.launch.failures import annotate
from nbaccel.launch.output import marks
from nbaccel.launch.output.logs import RankLogs
from nbaccel.launch.output.noise import without_noise
from nbaccel.launch.output.rank_feed import RankFeed
from nbaccel.launch.output.rank_stream import RankStream
from nbaccel.launch.output.screen import Screen, is_interactive
from nbaccel.launch.transport.messages import Display

MODES = OUTPUT_MODES
"""Choices of ``output``."""

_TAIL_LINES = 20
_TAIL_LINE_SIZE = 2000
_KEPT_LINES = 1000
_KEPT_SIZE = 1 << 20


class Router:
    """Output of one launch."""

    def __init__(
        self,
        mode: str,
        ranks: range,
        *,
        main_rank: int = 0,
        log_dir: str | None = None,
        labels: Mapping[int, str] | None = None,
    ) -> None:
        """Prepare for the output of some ranks.

        Args:
            mode: one of :data:`MODES`.
            ranks: ranks of this machine.
            main_rank: the one whose progress bars are live.
            log_dir: folder for each rank's whole output; None for no logs.
            labels: what the user wants before the lines of each rank, however few processes there
                are; None for the usual.

        Raises:
            OSError: a log can't be written there.
        """
        self.secret = marks.new_secret()
        """What the workers' marks start with."""
        self._ranks = ranks
        self._labels = labels
        self._main_rank = main_rank
        self._logs = RankLogs(log_dir, ranks) if log_dir else None
        self.begin(mode)
        self._tails: dict[int, deque[str]] = {rank: deque(maxlen=_TAIL_LINES) for rank in ranks}
        self._streams = {
            (rank, is_err): RankStream(self, rank, is_err) for rank in ranks for is_err in (False, True)
        }
        self._rank_of = {rank: rank for rank in ranks}
        """Whose text comes from the source with this number."""
        self._feeds = {
            source: RankFeed(
                self.secret,
                lambda is_err, data, source=source: self._text(  # type: ignore[misc]
                    self._rank_of[source], is_err, data
                ),
                lambda display, source=source: self._display(  # type: ignore[misc]
                    self._rank_of[source], display
                ),
            )
            for source in ranks
        }

    def begin(self, mode: str) -> None:
        """What arrives from now on belongs to the cell that runs now.

        Args:
            mode: one of :data:`MODES`.
        """
        self._mode = mode
        self._labelled = self._labels is not None or (len(self._ranks) > 1 and mode == "all")
        self._interactive = is_interactive()
        self._screen = Screen()
        self._kept = {rank: _Kept() for rank in self._ranks}

    # --- what arrives -------------------------------------------------------------------------

    def renumber(self, rank_of: Mapping[int, int]) -> None:
        """What comes from a source is from now on the text of another rank.

        A source is a worker as it was numbered at first; for most launches that is its rank for good.
        """
        self._rank_of.update(rank_of)

    def feed(self, source: int, is_err: bool, data: bytes) -> None:
        """Bytes that were read from one of a worker's pipes."""
        self._feeds[source].feed(is_err, data)

    def take_display(self, source: int, display: Display) -> None:
        """A display's content, which came over the worker's channel."""
        self._feeds[source].take(display)

    def end(self, source: int, is_err: bool) -> None:
        """The pipe is at its end: what is left of an unfinished line is written."""
        self._feeds[source].end(is_err)
        self._streams[self._rank_of[source], is_err].end()

    # --- time ---------------------------------------------------------------------------------

    def due(self) -> float:
        """``time.monotonic()`` at which :meth:`tick` should be called, at the latest."""
        return min(self._screen.due(), *(stream.due for stream in self._streams.values()))

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for stream in self._streams.values():
            if stream.due <= now:
                stream.tick(now)
        if self._screen.due() <= now:
            self._screen.write()

    def flush(self) -> None:
        """Write at once what was collected."""
        self._screen.write()

    def close(self, outcome: BaseException | None = None) -> None:
        """The launch is over: write all that is left, and close the logs.

        Args:
            outcome: what the launch raises; None when it went well.
        """
        self.finish(outcome)
        if self._logs:
            self._tell("a log could not be written", self._logs.close(), outcome)

    def finish(self, outcome: BaseException | None = None) -> None:
        """The cell's work is over: write all that is left.

        When the user's streams or a log refused what was to be written, that is said once: in a note
        of the launch's own error, else as a ``RuntimeWarning``.

        Args:
            outcome: what the launch raises; None when it went well.
        """
        for rank, feed in self._feeds.items():
            feed.give_up()
            for is_err in (False, True):
                self._streams[rank, is_err].end()
        self._screen.write()
        self._tell("output could not be shown", self._screen.trouble, outcome)

    @staticmethod
    def _tell(what: str, trouble: BaseException | None, outcome: BaseException | None) -> None:
        if trouble is None:
            return
        text = f"nbaccel: {what} and is lost in part: {type(trouble).__name__}: {trouble}"
        if outcome is None:
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        else:
            annotate(outcome, text)

    # --- what a failure needs -----------------------------------------------------------------

    def stderr_tail(self, rank: int) -> str:
        """The last lines of a rank's standard error."""
        return "".join(f"{line}\n" for line in self._tails[rank])

    def show_kept(self, rank: int) -> None:
        """Write what a rank had printed while it was not shown."""
        kept = self._kept[rank].take()
        if kept:
            self._screen.lines(
                True, (rank, "kept"), f"[rank {rank}] ", ["its output, which was not shown:", *kept]
            )
            self._screen.write()

    # --- called by the streams ----------------------------------------------------------------

    @property
    def screen(self) -> Screen:
        """Where this task's output is written."""
        return self._screen

    @property
    def interactive(self) -> bool:
        return self._interactive

    def is_shown(self, rank: int) -> bool:
        return self._mode == "all" or (self._mode == "main" and rank == self._main_rank)

    def is_live(self, rank: int) -> bool:
        """Whether unfinished lines of this rank are written as they grow."""
        return self.is_shown(rank) and rank == self._main_rank

    def passes_through(self, rank: int) -> bool:
        """Whether text is written as it comes, and not by line."""
        return self._interactive and not self._labelled and self.is_shown(rank)

    def raw(self, is_err: bool, text: str) -> None:
        self._screen.text(is_err, text)

    def lines(self, rank: int, is_err: bool, lines: list[str]) -> None:
        """Some lines are whole."""
        if is_err:
            self._tails[rank].extend(line[-_TAIL_LINE_SIZE:] for line in lines[-_TAIL_LINES:])
        if not self.is_shown(rank):
            self._kept[rank].add(lines)
        elif not self.passes_through(rank):
            self._screen.lines(is_err, rank, self._label(rank), lines)

    def progress(self, rank: int, is_err: bool, text: str) -> None:
        """The present state of a line that will be overwritten."""
        if self._interactive:
            self._screen.state(is_err, rank, self._label(rank) + text)
        else:
            self._screen.lines(is_err, rank, self._label(rank), [text])

    def partial(self, rank: int, is_err: bool, text: str) -> None:
        """An unfinished line that might be a question."""
        self._screen.partial(is_err, rank, self._label(rank) + text)

    # --- inside -------------------------------------------------------------------------------

    def _text(self, rank: int, is_err: bool, data: bytes) -> None:
        if self._logs:
            self._logs.write(rank, data)
        self._streams[rank, is_err].feed(without_noise(data))

    def _display(self, rank: int, display: Display) -> None:
        if not self.is_shown(rank):
            if text := display.data.get("text/plain"):
                self._kept[rank].add(str(text).split("\n"))
            return
        if display.action == "clear" and self._labelled and rank != self._main_rank:
            return  # it may clear its own output, and that can't be told from the others'
        if display.display_id and self._labelled and rank != self._main_rank:
            # Ranks that run the same code use the same names; each one updates its own display.
            display = replace(display, display_id=f"{display.display_id}-rank-{rank}")
        if display.action == "show" and self._labelled and not display.is_value:
            self._screen.lines(False, rank, self._label(rank), ["displays:"])
        self._screen.display(display)

    def _label(self, rank: int) -> str:
        if self._labels is not None:
            return self._labels[rank]
        return f"[rank {rank}] " if self._labelled else ""


class _Kept:
    """The last lines of a rank that isn't shown, within bounds."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._size = 0

    def add(self, lines: list[str]) -> None:
        lines = [line[-_KEPT_SIZE:] for line in lines[-_KEPT_LINES:]]
        self._lines.extend(lines)
        self._size += sum(map(len, lines))
        while len(self._lines) > _KEPT_LINES or self._size > _KEPT_SIZE:
            self._size -= len(self._lines.popleft())

    def take(self) -> list[str]:
        lines = list(self._lines)
        self._lines.clear()
        self._size = 0
        return lines
