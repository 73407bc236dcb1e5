"""Logged values as curves of bounded size, however long a run is.

A curve holds at most :data:`CAPACITY` points. When they are all in use, neighbours are merged in pairs,
and from then on twice as many values make one point: mean, least and greatest of them are kept, so a
spike stays visible. Adding a value takes well under a microsecond. Must not import torch: the kernel
reads curves too.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

CAPACITY = 256
"""Points of a curve at most."""

FIELDS = 4
"""Numbers of a point: step, mean, least, greatest."""

_Point = tuple[float, float, float, float]


@dataclass(frozen=True)
class CurveData:
    """A curve at one moment, as it travels."""

    name: str
    points: array[float]
    """:data:`FIELDS` numbers a point."""
    last: float
    """The value that was logged last, as it was."""
    last_step: float
    count: int
    """Values logged."""
    strange: int
    """How many of them were no finite numbers; they are in no point."""


class Curve:
    """Values of one name, in the order in which they were logged. Written by one thread, read by any."""

    __slots__ = (
        "_capacity",
        "_greatest",
        "_in_point",
        "_least",
        "_per_point",
        "_points",
        "_steps",
        "_sum",
        "count",
        "last",
        "last_step",
        "name",
        "strange",
    )

    def __init__(self, name: str, capacity: int = CAPACITY) -> None:
        """An empty curve.

        Args:
            name: what the values are called.
            capacity: points at most; even.
        """
        self.name = name
        self.count = 0
        self.strange = 0
        self.last = math.nan
        self.last_step = 0.0
        self._capacity = capacity
        self._points: list[_Point] = []
        self._per_point = 1
        self._in_point = 0
        self._steps = self._sum = 0.0
        self._least, self._greatest = math.inf, -math.inf

    def add(self, step: float | None, value: float) -> None:
        """Note a value; without a step they are counted."""
        self.count += 1
        self.last = value
        at = self.count if step is None else step
        self.last_step = at
        if not -math.inf < value < math.inf:
            self.strange += 1
            return
        self._steps += at
        self._sum += value
        # A comparison takes a third of the time of min() and max().
        if value < self._least:  # noqa: PLR1730
            self._least = value
        if value > self._greatest:  # noqa: PLR1730
            self._greatest = value
        self._in_point += 1
        if self._in_point >= self._per_point:
            self._end_point()

    def data(self) -> CurveData:
        """What there is now, the point under way included."""
        # One operation: the writing thread may be in the middle of adding.
        points = list(self._points)
        open_point = self._open_point()
        if open_point is not None:
            points.append(open_point)
        numbers = array("d")
        for point in points:
            numbers.extend(point)
        return CurveData(self.name, numbers, self.last, self.last_step, self.count, self.strange)

    # --- inside -------------------------------------------------------------------------------

    def _begin_point(self) -> None:
        self._in_point = 0
        self._steps = self._sum = 0.0
        self._least, self._greatest = math.inf, -math.inf

    def _open_point(self) -> _Point | None:
        count, steps, total, least, greatest = (
            self._in_point,
            self._steps,
            self._sum,
            self._least,
            self._greatest,
        )
        return None if count == 0 else (steps / count, total / count, least, greatest)

    def _end_point(self) -> None:
        point = self._open_point()
        assert point is not None
        points = self._points
        points.append(point)
        if len(points) >= self._capacity:
            # Put in place whole: a reader sees the one list or the other.
            self._points = [_merged(a, b) for a, b in zip(points[::2], points[1::2], strict=True)]
            self._per_point *= 2
        self._begin_point()


def _merged(one: _Point, other: _Point) -> _Point:
    return (
        (one[0] + other[0]) / 2,
        (one[1] + other[1]) / 2,
        min(one[2], other[2]),
        max(one[3], other[3]),
    )
