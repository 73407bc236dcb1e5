"""One stream of one rank: from pieces of text to whole lines, states of bars, and unfinished lines."""

from __future__ import annotations

import codecs
import time
from typing import Protocol

from nbaccel.launch.output import lines as line_reading
from nbaccel.launch.output.noise import is_noise

QUIET_SECONDS = 0.3
"""How long a stream has to be quiet until an unfinished line of it is shown."""

BATCH_PROGRESS_SECONDS = (1.0, 60.0)
"""Where nobody watches: time from one state of a bar to the next, at first and at most. It grows by
half each time, so that a bar of a minute gives 8 lines and one of an hour 70."""

_LONGEST_PROMPT = 2000


class Receiver(Protocol):
    """Who takes what a stream has found: the launch's router."""

    @property
    def interactive(self) -> bool:
        """Whether somebody watches."""

    def is_live(self, rank: int) -> bool:
        """Whether unfinished lines of this rank are written as they grow."""

    def passes_through(self, rank: int) -> bool:
        """Whether text is written as it comes, and not by line."""

    def raw(self, is_err: bool, text: str) -> None:
        """Text as it comes."""

    def lines(self, rank: int, is_err: bool, lines: list[str]) -> None:
        """Some lines are whole."""

    def progress(self, rank: int, is_err: bool, text: str) -> None:
        """The present state of a line that will be overwritten."""

    def partial(self, rank: int, is_err: bool, text: str) -> None:
        """An unfinished line that might be a question."""


class RankStream:
    """One stream of one rank: its lines, and when to look at an unfinished one."""

    def __init__(self, router: Receiver, rank: int, is_err: bool) -> None:
        self._router = router
        self._rank = rank
        self._is_err = is_err
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._reader = line_reading.LineReader()
        self._throttle = _Throttle()
        self._quiet_at = float("inf")

    @property
    def due(self) -> float:
        return min(self._quiet_at, self._throttle.due)

    def feed(self, data: bytes) -> None:
        self._take(self._decoder.decode(data))

    def tick(self, now: float) -> None:
        if self._quiet_at <= now:
            self._quiet_at = float("inf")
            self._emit(self._reader.settle())
            partial = self._reader.partial
            if partial and self._is_live and len(partial) <= _LONGEST_PROMPT:
                self._router.partial(self._rank, self._is_err, partial)
        if self._throttle.due <= now:
            state = self._throttle.take(now)
            self._router.progress(self._rank, self._is_err, state)

    def end(self) -> None:
        self._take(self._decoder.decode(b"", final=True))
        self._emit(self._reader.end())
        self._quiet_at = float("inf")
        self._throttle.drop()

    @property
    def _is_live(self) -> bool:
        router = self._router
        return router.is_live(self._rank) and not router.passes_through(self._rank)

    def _take(self, text: str) -> None:
        if not text:
            return
        router = self._router
        if router.passes_through(self._rank):
            router.raw(self._is_err, text)
            if not self._is_err:
                return
        self._emit(self._reader.feed(text))
        if self._is_live and (state := self._reader.progress) is not None:
            if router.interactive:
                router.progress(self._rank, self._is_err, state)
            else:
                self._throttle.put(state)
        if self._reader.has_open_rows or (self._is_live and self._reader.has_partial):
            self._quiet_at = time.monotonic() + QUIET_SECONDS
        else:
            self._quiet_at = float("inf")

    def _emit(self, lines: list[str]) -> None:
        lines = [line for line in lines if not is_noise(line)]
        if not lines:
            return
        if self._throttle.is_open:
            lines = [line for line in lines if not self._throttle.has_shown(line)]
            if self._reader.progress is None:
                self._throttle.drop()
        if lines:
            self._router.lines(self._rank, self._is_err, lines)


class _Throttle:
    """Picks the states of a progress bar that are worth a line where nobody watches."""

    def __init__(self) -> None:
        self._state: str | None = None
        self._shown: str | None = None
        self._next = float("inf")
        self._interval = BATCH_PROGRESS_SECONDS[0]
        self.is_open = False
        """A bar is under way."""

    @property
    def due(self) -> float:
        return self._next if self._state is not None else float("inf")

    def put(self, state: str) -> None:
        """The bar shows this now."""
        if not self.is_open:
            self.is_open = True
            self._next = time.monotonic() + self._interval
        if state != self._shown:
            self._state = state

    def take(self, now: float) -> str:
        """The state that is written now."""
        assert self._state is not None
        state, self._state = self._state, None
        self._shown = state.rstrip()
        self._next = now + self._interval
        self._interval = min(self._interval * 1.5, BATCH_PROGRESS_SECONDS[1])
        return self._shown

    def has_shown(self, line: str) -> bool:
        """Whether this line would only say again what was written last."""
        return line == self._shown

    def drop(self) -> None:
        """The bar is over."""
        self._state = self._shown = None
        self._interval = BATCH_PROGRESS_SECONDS[0]
        self.is_open = False
