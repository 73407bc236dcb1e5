"""Where the live panel shows: a notebook's cell, a terminal's last line, or lines in a batch run.

In a notebook it is one display, whose content is replaced. It stands where it appeared first, among
the output of its cell, and its last content is what is saved with the notebook. Everything else that
is printed stays as it is.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
import weakref

from nbaccel.launch.output import screen
from nbaccel.launch.output.screen import Screen
from nbaccel.launch.progress.model import Picture, View
from nbaccel.launch.transport.messages import Display
from nbaccel.widgets import panel_html, panel_text

BATCH_SECONDS = (10.0, 60.0)
"""In a batch run: time until the first line and to the next, and at most. It grows by half each time."""

UNSEEN_SECONDS = 2.0
"""Between two updates of a notebook that nobody watches."""


def make_view(surface: str, where: Screen, asked: bool) -> View:
    """The view for a surface.

    Args:
        surface: as :func:`nbaccel.launch.output.screen.surface` tells.
        where: output of the task, among which it shows.
        asked: the user asked for it: a short run is shown too.
    """
    if surface == screen.TERMINAL and (view := _Terminal.on_free_terminal(where)) is not None:
        return view
    if surface in (screen.NOTEBOOK, screen.CAPTURED):
        return _Notebook(where, only_last=surface == screen.CAPTURED)
    return _Lines(where, asked=asked)


class _Notebook:
    """One display that is updated."""

    def __init__(self, where: Screen, *, only_last: bool) -> None:
        self._screen = where
        self._only_last = only_last
        self._id = f"nbaccel-progress-{uuid.uuid4().hex}"
        self._action = "show"
        self._next = float("-inf")
        self._interval = 0.0 if screen.is_interactive() else UNSEEN_SECONDS

    def update(self, picture: Picture) -> None:
        now = time.monotonic()
        if not self._only_last and now >= self._next:
            self._next = now + self._interval
            self._put(picture)

    def end(self, picture: Picture) -> None:
        self._put(picture)

    def _put(self, picture: Picture) -> None:
        data = {"text/html": panel_html.document(picture), "text/plain": panel_text.block(picture)}
        display = Display(number=0, action=self._action, data=data, display_id=self._id)
        self._action = "update"
        self._screen.show_now(display)


class _Terminal:
    """The last line of the terminal, which goes when the run is over; a plain line tells how it ended."""

    _lock = threading.Lock()
    _present: weakref.ref[_Terminal] | None = None
    """Several launches in threads share one terminal; one of them has its last line."""

    def __init__(self, where: Screen) -> None:
        self._screen = where

    @classmethod
    def on_free_terminal(cls, where: Screen) -> _Terminal | None:
        """A view on the terminal; None while another one has it."""
        with cls._lock:
            if cls._present is not None and cls._present() is not None:
                return None
            view = cls(where)
            cls._present = weakref.ref(view)
            return view

    def update(self, picture: Picture) -> None:
        from rich.cells import set_cell_size

        text = f"nbaccel: {panel_text.line(picture)}"
        columns = shutil.get_terminal_size().columns - 1
        self._screen.status(set_cell_size(text, columns).rstrip())

    def end(self, picture: Picture) -> None:
        self._screen.status("")
        _Terminal._present = None
        _write_line(self._screen, picture)


class _Lines:
    """A line now and then, ever more rarely."""

    def __init__(self, where: Screen, *, asked: bool) -> None:
        self._screen = where
        self._asked = asked
        self._interval, self._longest = BATCH_SECONDS
        self._next = time.monotonic() + self._interval
        self._has_spoken = False

    def update(self, picture: Picture) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._has_spoken = True
        self._interval = min(self._interval * 1.5, self._longest)
        self._next = now + self._interval
        _write_line(self._screen, picture)

    def end(self, picture: Picture) -> None:
        if self._asked or self._has_spoken:
            _write_line(self._screen, picture)


def _write_line(where: Screen, picture: Picture) -> None:
    where.lines(False, "nbaccel", "nbaccel: ", [panel_text.line(picture)])
    where.write()
