"""What the training loop of a rank is at, for whoever watches: counters that cost next to nothing.

::

    training thread    step clock, loops, log()  ──writes──▶  gauges
    another thread     look()                    ◀──reads──   gauges

Nothing here does I/O, waits, or is written to while nobody watches. Curves have a bounded size
(:mod:`nbaccel.runtime.curves`). A value that lies on an accelerator is fetched in the thread that logs
it, and of each name at most every :data:`FETCH_SECONDS`, since fetching waits for the device. Must not
import torch.
"""

from __future__ import annotations

import itertools
import math
import numbers
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbaccel.runtime.curves import Curve, CurveData
from nbaccel.runtime.rank_local import RankLocal
from nbaccel.runtime.steps import StepClock, clock

MAX_CURVES = 64
"""Names that get a curve; values of further names are counted only."""

FETCH_SECONDS = 0.5
"""Least time between two waits for an accelerator, for each name."""

_NOT_FETCHED = frozenset({"xla", "meta"})
"""Kinds of device whose values aren't fetched: it would cut a lazy graph in two, or there is none."""


@dataclass(frozen=True)
class Pass:
    """One pass over a prepared loader."""

    number: int
    """Counts up with each pass of the process, so that two looks at the same one can be told."""
    loader: int
    """Tells loaders apart."""
    epoch: int
    """From 0, as the task counts: on from what it has set itself, else from its own start."""
    done: int
    """Batches that were handed out, those left out at the start included."""
    length: int | None
    """Batches of the pass on this rank; None when not known."""
    steps: int
    """Optimizer steps since it began."""
    total: int
    """Batches of its loader in all passes of the task so far."""


@dataclass(frozen=True)
class Standing:
    """What the training loop is at, at one moment."""

    when: float
    """``time.monotonic()``."""
    steps: int = 0
    """Optimizer steps of the task."""
    passes: tuple[Pass, ...] = ()
    """Those that run, outermost first."""
    last: Pass | None = None
    """The last finished one in which steps were taken."""
    first_epoch: int | None = None
    """The epoch of the task's first pass in which steps were taken."""
    epochs: int | None = None
    """How many passes there will be in this task, when that was said."""
    total_steps: int | None = None
    """The same for steps."""
    curves: tuple[CurveData, ...] = ()
    """Those that have changed since the last look."""
    further_names: int = 0
    """Names without a curve because there are too many."""


class Gauges:
    """Those of one rank: written by the thread that trains, read by another."""

    def __init__(self, own_clock: StepClock | None = None) -> None:
        """Nothing is watched yet.

        Args:
            own_clock: the rank's; that of the calling thread's rank by default.
        """
        self._clock = clock() if own_clock is None else own_clock
        self.watching = False
        """Whether anybody looks."""
        self.begun = 0
        """Tasks that have begun so far; the number of the present one."""
        self.loops: list[weakref.ref[Any]] = []
        """Those that run in the thread that trains, outermost first; :mod:`nbaccel.runtime.data.loops` keeps
        it."""
        self._numbers = itertools.count(1)
        self._forget()

    def _forget(self) -> None:
        self._steps_before = self._clock.count
        self._last: Pass | None = None
        self._batches_before: dict[int, int] = {}
        self._first_epoch: int | None = None
        self._epochs: int | None = None
        self._total_steps: int | None = None
        self._curves: dict[str, Curve] = {}
        self._further: set[str] = set()
        self._reported: dict[str, int] = {}
        self._waiting: dict[str, tuple[float | None, Any]] = {}
        self._fetched_at: dict[str, float] = {}

    # --- by whoever watches -------------------------------------------------------------------

    def begin(self) -> None:
        """A task begins that somebody watches."""
        self._forget()
        self.begun += 1
        self.watching = True

    def end(self) -> None:
        """It is over."""
        self.watching = False

    def look(self) -> Standing:
        """What the loop is at. Curves that haven't changed since the last look are left out."""
        loops = [loop for ref in list(self.loops) if (loop := ref()) is not None]
        changed = []
        for name, curve in list(self._curves.items()):
            count = curve.count
            if self._reported.get(name) != count:
                self._reported[name] = count
                changed.append(curve.data())
        return Standing(
            when=time.monotonic(),
            steps=self._clock.count - self._steps_before,
            passes=tuple(self._pass_of(loop) for loop in loops),
            last=self._last,
            first_epoch=self._first_epoch,
            epochs=self._epochs,
            total_steps=self._total_steps,
            curves=tuple(changed),
            further_names=len(self._further),
        )

    def has_news(self) -> bool:
        """Whether the task has logged, trained or iterated at all."""
        return bool(self._curves or self._last or self.loops or self._clock.count != self._steps_before)

    # --- by the training loop -----------------------------------------------------------------

    def next_number(self) -> int:
        """The number of a pass that begins."""
        return next(self._numbers)

    def pass_is_over(self, loop: Any) -> None:
        """A loop has ended, or was broken off."""
        if not self.watching:
            return
        over = self._pass_of(loop)
        if over.steps:
            self._last = over
            if self._first_epoch is None:
                self._first_epoch = over.epoch
        self._batches_before[over.loader] = over.total

    def expect(self, epochs: int | None, steps: int | None) -> None:
        """How long the run will be."""
        self._epochs = epochs
        self._total_steps = steps

    def note(self, values: Mapping[str, Any], step: float | None) -> None:
        """Take numbers out of what is logged; texts and tensors of more than one element have no curve."""
        for name, value in values.items():
            kind = type(value)
            if kind is float or kind is int:
                self._add(name, step, value)
            elif kind is not str:
                self._note_other(name, step, value)

    def settle(self) -> None:
        """In the thread that logs, at the task's end: fetch what wasn't fetched yet."""
        waiting, self._waiting = self._waiting, {}
        for name, (step, value) in waiting.items():
            self._fetch(name, step, value)

    # --- inside -------------------------------------------------------------------------------

    def _add(self, name: str, step: float | None, number: float) -> None:
        curve = self._curves.get(name)
        if curve is None:
            if len(self._curves) >= MAX_CURVES:
                self._further.add(str(name))
                return
            curve = self._curves[name] = Curve(str(name))
        curve.add(step, number)

    def _note_other(self, name: str, step: float | None, value: Any) -> None:
        device = getattr(value, "device", None)
        kind = getattr(device, "type", "cpu")
        if kind == "cpu":
            self._fetch(name, step, value)
        elif kind not in _NOT_FETCHED:
            now = time.monotonic()
            if now - self._fetched_at.get(name, -math.inf) < FETCH_SECONDS:
                self._waiting[name] = (step, value.detach())
            else:
                self._fetched_at[name] = now
                self._waiting.pop(name, None)
                self._fetch(name, step, value)

    def _pass_of(self, loop: Any) -> Pass:
        loader, done = id(loop.loader()), loop.index + 1
        return Pass(
            number=loop.number,
            loader=loader,
            epoch=loop.epoch - loop.first_epoch,
            done=done,
            length=loop.length,
            steps=self._clock.count - loop.steps_before,
            total=self._batches_before.get(loader, 0) + done,
        )

    def _fetch(self, name: str, step: float | None, value: Any) -> None:
        if hasattr(value, "detach"):
            value = value.detach()
        try:
            number = float(value.item() if hasattr(value, "item") else value) if _is_number(value) else None
        except (TypeError, ValueError, RuntimeError):
            return  # several elements, a complex number, or a device that has failed: no number to draw
        if number is not None:
            self._add(name, step, number)


def _is_number(value: Any) -> bool:
    return hasattr(value, "item") or isinstance(value, numbers.Real)


_gauges = RankLocal(Gauges)


def gauges() -> Gauges:
    """Those of the rank which the calling thread belongs to."""
    return _gauges.get()


def use_gauges(own: Gauges) -> None:
    """Let ``own`` be the gauges of the calling thread's rank."""
    _gauges.set(own)
