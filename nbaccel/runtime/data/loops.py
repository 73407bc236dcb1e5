"""Which prepared loaders are being iterated right now, and how far they are.

Accumulation asks whether the running batch is the last one, and ``gather_for_metrics`` how many of
its samples are real. Loops nest (an evaluation inside an epoch), and can be broken off.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from nbaccel.runtime.environment import thread_place
from nbaccel.runtime.gauges import gauges
from nbaccel.runtime.steps import clock


class Loop:
    """One pass over a prepared loader. Lives as long as its iterator, which owns it."""

    __slots__ = (
        "__weakref__",
        "at_end",
        "counts",
        "epoch",
        "first_epoch",
        "index",
        "length",
        "loader",
        "number",
        "place",
        "steps_before",
    )

    def __init__(self, loader: Any, length: int | None) -> None:
        self.loader = weakref.ref(loader)
        self.length = length
        """Batches in this pass on this rank, or None when that isn't known."""
        self.index = -1
        """Position of the running batch."""
        self.at_end = False
        """Whether the running batch is the last one."""
        self.counts: list[int] | None = None
        """By rank, how many samples of the running batch are real; None when all are."""
        self.place: Any = None
        """Where what is read from was after the running batch; None when it doesn't tell."""
        self.epoch: int = loader.iteration
        """The loader's, as the pass began."""
        self.first_epoch: int = loader.first_epoch_of(gauges().begun)
        """The one that the present task counts from."""
        self.number = gauges().next_number()
        """Of the pass, on this rank."""
        self.steps_before = clock().count
        """Optimizer steps that were taken before it."""

    @property
    def remaining(self) -> int | None:
        """Batches left, the running one included; None when not known."""
        if self.at_end:
            return 1
        return None if self.length is None else max(1, self.length - self.index)


class _Running(threading.local):
    # Per thread: on some accelerators the ranks of a process are threads.
    def __init__(self) -> None:
        self.loops: list[weakref.ref[Loop]] = []


_running = _Running()


def enter(loop: Loop) -> None:
    """Note that ``loop`` runs now, inside those that run already."""
    _running.loops.append(weakref.ref(loop))
    if threading.current_thread() is threading.main_thread() or thread_place() is not None:
        # Only now: whose gauges these are is said after this module was imported, by a forked worker for one.
        gauges().loops = _running.loops


def leave(loop: Loop) -> None:
    """Note that ``loop`` is over. Loops can end in any order."""
    _running.loops[:] = [ref for ref in _running.loops if (other := ref()) is not None and other is not loop]
    gauges().pass_is_over(loop)


def current() -> Loop | None:
    """The innermost loop that runs; None outside of any."""
    loops = _running.loops
    while loops:
        loop = loops[-1]()
        if loop is not None:
            return loop
        # Its iterator was dropped without being closed.
        loops.pop()
    return None


def running() -> list[Loop]:
    """All loops that run, outermost first."""
    return [loop for ref in _running.loops if (loop := ref()) is not None]
