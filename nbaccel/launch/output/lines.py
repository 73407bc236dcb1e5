"""From a stream's text to lines, and to the present state of a line that is being overwritten.

Knows what a terminal would show of carriage returns and of the codes that progress bars use: cursor
up, erase, hide the cursor. Takes time and memory in proportion to the text, however long a line is.
Must not know of ranks, labels or where lines go.
"""

from __future__ import annotations

import re

MAX_LINE = 1 << 27
"""Characters after which a line without an end is ended, so that it can't use up all memory."""

_MAX_ROWS = 32
"""Rows above the cursor that are kept open for a cursor-up code."""

_CONTROL = re.compile(r"\r|\x1b\[\d*[AK]|\x1b\[\?|\x1b(?:\[[\d;?]*)?\Z")
_TOKEN = re.compile(
    r"(?P<text>[^\r\n\x1b]+)|(?P<cr>\r)|(?P<lf>\n)|\x1b\[(?P<up>\d*)A"
    r"|\x1b\[(?P<clear>\d?)K|(?P<mode>\x1b\[\?[\d;]*[hl])|(?P<other>\x1b(?:\[[\d;?]*[@-~])?)"
)
_PARTIAL_ESCAPE = re.compile(r"\x1b(?:\[[\d;?]*)?\Z")


class _Row:
    """One line of the screen, and where the next character goes."""

    def __init__(self, text: str = "") -> None:
        self._parts = [text] if text else []
        self._length = len(text)
        self._column = self._length
        self.is_progress = False
        """It was returned to, so that what it shows may change again."""
        self.was_used = bool(text)
        """Something stood in it, even if nothing does now."""

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def write(self, text: str) -> None:
        self.was_used = True
        if self._column == self._length:
            self._parts.append(text)
            self._length += len(text)
            self._column = self._length
            return
        old = self.text
        # Colour codes take no room on the screen: where there are any, columns can't be counted.
        tail = "" if "\x1b" in old or "\x1b" in text else old[self._column + len(text) :]
        self._replace(old[: self._column] + text + tail, self._column + len(text))

    def to_start(self) -> None:
        self._column = 0
        self.is_progress = True

    def clear(self, part: str) -> None:
        """Remove what stands behind the cursor (``0`` or empty), before it (``1``), or all (``2``)."""
        before = self.text[: self._column] if part in {"", "0"} else " " * self._column
        behind = self.text[self._column :] if part == "1" else ""
        self._replace(before + behind, self._column)

    def _replace(self, text: str, column: int) -> None:
        self._parts = [text]
        self._length = len(text)
        self._column = min(column, self._length)


class LineReader:
    """One stream's text, cut into lines.

    Plain text takes the short way: pieces of one unfinished line. Once a carriage return or a
    cursor-up code comes, a few rows are kept as a terminal would, until they can't change any more.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []  # the short way's unfinished line
        self._length = 0
        self._rows: list[_Row] | None = None
        self._cursor = 0
        self._moves_up = False
        self._latest: _Row | None = None
        self._escape = ""

    def feed(self, text: str) -> list[str]:
        """Take in text; returns the lines that it has finished, without their ends."""
        text = self._escape + text
        self._escape = ""
        if self._rows is None:
            # Most text has neither of the two, and that is found out fastest.
            is_plain = "\r" not in text and "\x1b" not in text
            if is_plain or not _CONTROL.search(text):
                return self._feed_plain(text)
        if partial := _PARTIAL_ESCAPE.search(text):
            self._escape = partial.group()
            text = text[: partial.start()]
        return self._feed_rows(text)

    @property
    def progress(self) -> str | None:
        """What a line that is being overwritten shows at present; None when there is no such line."""
        latest = self._latest
        return latest.text if latest is not None and latest.is_progress and latest.text.strip() else None

    @property
    def partial(self) -> str:
        """An unfinished line that is not being overwritten; empty when there is none."""
        if self._rows is not None:
            return ""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def has_partial(self) -> bool:
        """Whether :attr:`partial` has anything; cheap, however long it is."""
        return self._rows is None and bool(self._parts)

    @property
    def has_open_rows(self) -> bool:
        """Some lines are finished unless a cursor-up code still comes."""
        return self._rows is not None and self._cursor > 0

    def settle(self) -> list[str]:
        """The stream has been quiet: lines that only a cursor-up code could still change."""
        if self._rows is None:
            return []
        done = self._close_rows(self._cursor)
        if not any(row.text.strip() for row in self._rows):
            self._forget_rows()
        return done

    def end(self) -> list[str]:
        """No more will come: everything that is left."""
        if self._rows is None:
            rest = [self.partial + self._escape]
            self._parts.clear()
        else:
            if self._escape:
                self._rows[self._cursor].write(self._escape)
            rest = _finished(self._rows)
        self._forget_rows()
        self._length = 0
        self._escape = ""
        return [line for line in rest if line]

    # --- the short way ------------------------------------------------------------------------

    def _feed_plain(self, text: str) -> list[str]:
        first, *others = text.split("\n")
        if first:
            self._parts.append(first)
            self._length += len(first)
        if not others:
            if self._length <= MAX_LINE:
                return []
            others = [""]
        lines = ["".join(self._parts), *others[:-1]]
        rest = others[-1]
        self._parts = [rest] if rest else []
        self._length = len(rest)
        return lines

    # --- with rows ----------------------------------------------------------------------------

    def _feed_rows(self, text: str) -> list[str]:
        if self._rows is None:
            self._rows = [_Row(self.partial)]
            self._parts.clear()
            self._length = 0
            self._cursor = 0
        done: list[str] = []
        rows = self._rows
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            row = rows[self._cursor]
            if kind in {"text", "other"}:
                row.write(token.group())
                self._latest = row
            elif kind == "cr":
                row.to_start()
            elif kind == "lf":
                self._cursor += 1
                if self._cursor == len(rows):
                    rows.append(_Row())
                if not self._moves_up or self._cursor > _MAX_ROWS:
                    done += self._close_rows(1 if self._moves_up else self._cursor)
                elif not rows[0].is_progress:
                    done += self._close_rows(1)
            elif kind == "up":
                self._up(int(token.group("up") or 1))
            elif kind == "clear":
                row.clear(token.group("clear"))
        if len(rows) == 1 and not rows[0].is_progress:
            self._back_to_plain(rows[0])
        return done

    def _up(self, count: int) -> None:
        assert self._rows is not None
        self._moves_up = True
        for _ in range(min(count, _MAX_ROWS)):
            if self._cursor:
                self._cursor -= 1
            else:  # the row is written already; what comes for it makes a new one
                self._rows.insert(0, _Row())
        row = self._rows[self._cursor]
        row.is_progress = row.was_used = True

    def _close_rows(self, count: int) -> list[str]:
        assert self._rows is not None
        closed, self._rows[:count] = self._rows[:count], []
        self._cursor -= count
        if self._latest in closed:
            self._latest = None
        return _finished(closed)

    def _back_to_plain(self, row: _Row) -> None:
        self._parts = [row.text] if row.text else []
        self._length = len(row.text)
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._rows = None
        self._cursor = 0
        self._moves_up = False
        self._latest = None


def _finished(rows: list[_Row]) -> list[str]:
    return [row.text.rstrip() if row.is_progress else row.text for row in rows if not _is_wiped(row)]


def _is_wiped(row: _Row) -> bool:
    """A bar that has removed itself leaves no line; an empty line of the user's stays."""
    return row.is_progress and row.was_used and not row.text.strip()
