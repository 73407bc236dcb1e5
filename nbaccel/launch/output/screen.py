"""What the user looks at: the kernel's two streams and its display area, written in small batches.

Entries are collected and written some 20 times a second, the first one after a pause at once. That
keeps the number of messages to a front end bounded, and lets a progress bar's states replace each
other before anybody sees them. Must not know of pipes or workers, and must not raise because the
user's streams do: whoever supervises processes has to go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from nbaccel.launch.transport.messages import Display

BATCH_SECONDS = 0.05
"""Least time between two batches."""

_BATCH_CHARACTERS = 1 << 20
_SWITCHES_A_BATCH = 20
"""Changes between the two streams that a batch keeps in order; each of them is a message to a front
end. In what goes beyond, each stream's own order is kept."""


@dataclass
class _Text:
    """Characters that are written as they are."""

    is_err: bool
    text: str


@dataclass
class _Line:
    """One or more whole lines, the last one's end included."""

    is_err: bool
    owner: object
    text: str


@dataclass
class _Open:
    """A line without an end. ``redraws``: it takes the place of what the line showed before."""

    is_err: bool
    owner: object
    text: str
    redraws: bool


class Screen:
    """Collects entries and writes them; ``owner`` tells whose unfinished line an entry goes on with."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        """The first error that the user's streams raised; what was to be written there is lost."""
        self._entries: list[_Text | _Line | _Open | Display] = []
        self._size = 0
        self._written_at = float("-inf")
        self._open: _Open | None = None
        self._broken: set[bool] = set()
        self._last: bool | None = None
        self._status = ""
        self._drawn = False
        self._at_line_start = True

    # --- entries ------------------------------------------------------------------------------

    def text(self, is_err: bool, text: str) -> None:
        """Characters as they came."""
        if text:
            self._add(_Text(is_err, text), len(text))

    def lines(self, is_err: bool, owner: object, label: str, lines: list[str]) -> None:
        """Whole lines, without their ends, and what stands before each. They close the owner's open line."""
        text = label + f"\n{label}".join(lines) + "\n"
        self._add(_Line(is_err, owner, text), len(text))

    def state(self, is_err: bool, owner: object, text: str) -> None:
        """What a line that is being overwritten shows now."""
        self._add_open(_Open(is_err, owner, text, redraws=True))

    def partial(self, is_err: bool, owner: object, text: str) -> None:
        """What there is of a line that isn't finished."""
        self._add_open(_Open(is_err, owner, text, redraws=False))

    def display(self, display: Display) -> None:
        """A figure, a table, or a request to clear what is shown."""
        self._add(display, 0)

    def show_now(self, display: Display) -> None:
        """Show something of nbaccel's own. An update leaves a line that is open as it is."""
        if display.action == "update":
            self._show(display)
        else:
            self.display(display)
            self.write()

    def status(self, text: str) -> None:
        """What the last line of a terminal says, below all that is written; empty: no such line.

        It isn't shown while a line is open, a progress bar for example, which would be torn.
        """
        if text or self._drawn:
            self._erase_status()
            self._status = text
            self._draw_status()
            self._attempt(False, lambda stream: stream.flush())

    def _add(self, entry: _Text | _Line | _Open | Display, size: int) -> None:
        self._entries.append(entry)
        self._size += size
        if self._size > _BATCH_CHARACTERS:
            self.write()

    def _add_open(self, entry: _Open) -> None:
        last = self._entries[-1] if self._entries else None
        if isinstance(last, _Open) and (last.owner, last.is_err) == (entry.owner, entry.is_err):
            self._entries[-1] = entry
        else:
            self._add(entry, len(entry.text))

    # --- writing ------------------------------------------------------------------------------

    def due(self) -> float:
        """``time.monotonic()`` at which :meth:`write` should be called."""
        return self._written_at + BATCH_SECONDS if self._entries else float("inf")

    def write(self) -> None:
        """Write everything that was collected."""
        if not self._entries:
            return
        entries, self._entries, self._size = self._entries, [], 0
        self._erase_status()
        pieces: list[tuple[bool, str]] = []
        for entry in entries:
            if isinstance(entry, Display):
                self._close_open(pieces)
                self._put_all(pieces)
                pieces = []
                self._show(entry)
            else:
                self._render(entry, pieces)
        self._put_all(pieces)
        self._draw_status()
        self._written_at = time.monotonic()

    def _erase_status(self) -> None:
        if self._drawn:
            self._drawn = False
            self._attempt(False, lambda stream: stream.write("\r\x1b[K"))

    def _draw_status(self) -> None:
        if self._status and self._at_line_start:
            self._drawn = True
            self._attempt(False, lambda stream: stream.write(self._status))
            self._attempt(False, lambda stream: stream.flush())

    def _render(self, entry: _Text | _Line | _Open, pieces: list[tuple[bool, str]]) -> None:
        is_err = entry.is_err
        if isinstance(entry, _Text):
            pieces.append((is_err, entry.text))
            return
        shown = self._open
        if shown is not None and (shown.owner, shown.is_err) != (entry.owner, is_err):
            if shown.redraws and shown.is_err == is_err and isinstance(entry, _Line):
                # Others' lines go above a progress bar, so that no old state of it is left standing.
                first, end, rest = entry.text.partition("\n")
                above = f"\r{first.ljust(len(shown.text))}{end}{rest}"
                pieces.append((is_err, f"{above}\r{shown.text}"))
                return
            self._close_open(pieces)
            shown = None
        if shown is None:
            text = "\r" + entry.text if isinstance(entry, _Open) and entry.redraws else entry.text
        elif not shown.redraws and entry.text.startswith(shown.text):
            text = entry.text[len(shown.text) :]
        elif shown.redraws:
            first, end, rest = entry.text.partition("\n")
            # A front end overwrites character by character.
            text = "\r" + first.ljust(len(shown.text)) + end + rest
        else:
            text = "\n" + entry.text
        self._open = entry if isinstance(entry, _Open) else None
        pieces.append((is_err, text))

    def _close_open(self, pieces: list[tuple[bool, str]]) -> None:
        if self._open is not None:
            pieces.append((self._open.is_err, "\n"))
            self._open = None

    def _put_all(self, pieces: list[tuple[bool, str]]) -> None:
        runs = _runs(pieces)
        if len(runs) > _SWITCHES_A_BATCH:
            head, tail = runs[:_SWITCHES_A_BATCH], runs[_SWITCHES_A_BATCH:]
            runs = head
            for is_err in (False, True):
                runs.append((is_err, "".join(text for e, text in tail if e == is_err)))
        for is_err, text in runs:
            if text:
                self._put(is_err, text)
        for is_err in {is_err for is_err, _ in runs}:
            self._attempt(is_err, lambda stream: stream.flush())

    def _put(self, is_err: bool, text: str) -> None:
        if self._last is not None and self._last != is_err:
            # The two streams are sent on separately: what came first has to be on its way.
            self._attempt(self._last, lambda stream: stream.flush())
        self._last = is_err
        self._at_line_start = text.endswith("\n")
        self._attempt(is_err, lambda stream: stream.write(text))

    def _attempt(self, is_err: bool, action: Callable[[TextIO], object]) -> None:
        # Looked up each time: user code may replace the streams while workers run.
        stream: TextIO | None = sys.stderr if is_err else sys.stdout
        if stream is None or is_err in self._broken:
            return
        try:
            action(stream)
        except Exception as error:  # noqa: BLE001  # any object can stand in for a stream
            self._broken.add(is_err)
            self.trouble = self.trouble or error

    def _show(self, display: Display) -> None:
        try:
            publish(display)
        except Exception as error:  # noqa: BLE001  # the front end's side of it is anybody's code
            self.trouble = self.trouble or error


def publish(display: Display) -> None:
    """Hand a display to the notebook, or print its text where there is none."""
    shell = _shell()
    if shell is None:
        if display.action != "clear" and (text := display.data.get("text/plain")):
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        return
    # Looked up each time: capturing a cell's output replaces it.
    publisher = shell.display_pub
    if display.action == "clear":
        publisher.clear_output(wait=display.wait)
        return
    publisher.publish(
        data=dict(display.data),
        metadata=dict(display.metadata),
        transient={"display_id": display.display_id} if display.display_id else {},
        update=display.action == "update",
    )


NOTEBOOK, CAPTURED, TERMINAL, BATCH = "notebook", "captured", "terminal", "batch"
"""Surfaces: a front end, a cell whose displays are collected, a terminal, anything else."""


def surface() -> str:
    """What the user looks at."""
    shell = _shell()
    if getattr(shell, "kernel", None) is not None:
        # What collects displays (``%%capture``) has a list of them, and would keep each update.
        return CAPTURED if hasattr(shell.display_pub, "outputs") else NOTEBOOK
    return TERMINAL if is_interactive() else BATCH


def is_interactive() -> bool:
    """Whether somebody watches while this runs: a terminal, or a notebook's front end.

    Programs that execute notebooks (nbclient, papermill, nbconvert) say that they can't answer
    questions; front ends can.
    """
    stream: Any = sys.stdout
    shell = _shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is not None and type(stream).__module__.startswith("ipykernel."):
        return bool(getattr(kernel, "_allow_stdin", True))
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False  # replaced by something smaller than a stream, or closed


def _shell() -> Any:
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    return get_ipython()


def _runs(pieces: list[tuple[bool, str]]) -> list[tuple[bool, str]]:
    """Neighbouring pieces of the same stream as one."""
    runs: list[tuple[bool, list[str]]] = []
    for is_err, text in pieces:
        if runs and runs[-1][0] == is_err:
            runs[-1][1].append(text)
        else:
            runs.append((is_err, [text]))
    return [(is_err, "".join(texts)) for is_err, texts in runs]
