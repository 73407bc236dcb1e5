"""The two pipes of one rank, put back in the order in which the rank wrote to them.

Takes what the pipes give and hands on pieces of text and displays. A pipe that has come to a mark
waits there until the other pipe has come to it too, or the display it stands for has arrived; both
are on their way already, since a worker writes the mark last. Must not block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nbaccel.launch.output.marks import TURN, Mark, MarkFinder
from nbaccel.launch.transport.messages import Display


class RankFeed:
    """Restores the order of one rank's output."""

    def __init__(
        self, secret: bytes, on_text: Callable[[bool, bytes], None], on_display: Callable[[Display], None]
    ) -> None:
        self._on_text = on_text
        self._on_display = on_display
        self._finders = {is_err: MarkFinder(secret) for is_err in (False, True)}
        self._waiting: dict[bool, deque[bytes | Mark]] = {False: deque(), True: deque()}
        self._turn = {False: -1.0, True: -1.0}  # the last turn that each pipe has come to
        self._displays: dict[int, Display] = {}
        self._ended: set[bool] = set()
        self._waits = True

    def feed(self, is_err: bool, data: bytes) -> None:
        """Bytes from one of the pipes."""
        self._waiting[is_err].extend(self._finders[is_err].feed(data))
        self._go_on()

    def take(self, display: Display) -> None:
        """A display's content, which came over the channel."""
        self._displays[display.number] = display
        self._go_on()

    def end(self, is_err: bool) -> None:
        """One of the pipes is at its end."""
        if rest := self._finders[is_err].end():
            self._waiting[is_err].append(rest)
        self._ended.add(is_err)
        self._go_on()

    def give_up(self) -> None:
        """Nothing more will come at all: wait for nothing, and hand on what never got its mark."""
        self._waits = False
        self._go_on()
        for number in sorted(self._displays):
            self._on_display(self._displays.pop(number))

    def _go_on(self) -> None:
        moved = True
        while moved:
            moved = any([self._drain(False), self._drain(True)])
            for is_err in self._ended:
                if not self._waiting[is_err] and self._turn[is_err] != float("inf"):
                    self._turn[is_err] = float("inf")  # it keeps the other one waiting no longer
                    moved = True

    def _drain(self, is_err: bool) -> bool:
        """Hand on what may pass; says whether there was anything."""
        queue = self._waiting[is_err]
        moved = False
        while queue:
            item = queue[0]
            if isinstance(item, bytes):
                queue.popleft()
                self._on_text(is_err, item)
            elif item.kind == TURN:
                is_news = item.number > self._turn[is_err]
                self._turn[is_err] = max(self._turn[is_err], item.number)
                if self._waits and self._turn[not is_err] < item.number:
                    return moved or is_news
                queue.popleft()
            else:
                display = self._displays.pop(item.number, None)
                if display is None and self._waits:
                    return moved
                queue.popleft()
                if display is not None:
                    self._on_display(display)
            moved = True
        return moved
