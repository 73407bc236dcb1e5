"""A logged curve as a small SVG drawing, in the colour of the text around it. Pure functions."""

from __future__ import annotations

import html
from collections.abc import Iterable

from nbaccel.launch import quantities
from nbaccel.runtime.curves import FIELDS, CurveData
from nbaccel.widgets.panel_text import plain

WIDTH, HEIGHT = 220, 64
"""Units of the drawing; it is as wide as its place."""

MOST_POINTS = 110
"""Points that are drawn: more couldn't be told apart."""

_MARGIN = 3
_BEYOND = 1e300

Point = tuple[float, float, float, float]


def figure(curve: CurveData) -> str:
    """The curve with its name, last value and range, as HTML."""
    points = _thinned(points_of(curve))
    name = html.escape(plain(curve.name))
    last = html.escape(quantities.number(curve.last))
    caption = f'<div class="nbp-name"><span>{name}</span><b>{last}</b></div>'
    return f'<div class="nbp-curve">{caption}{_drawing(curve, points)}{_foot(curve, points)}</div>'


def points_of(curve: CurveData) -> list[Point]:
    """Step, mean, least and greatest of each point."""
    # What is beyond the bounds would overflow when a difference is taken.
    numbers = [min(max(number, -_BEYOND), _BEYOND) for number in curve.points]
    return [
        (numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3])
        for at in range(0, len(numbers), FIELDS)
    ]


def _thinned(points: list[Point]) -> list[Point]:
    while len(points) > MOST_POINTS:
        pairs = zip(points[::2], points[1::2], strict=False)
        merged = [((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, min(a[2], b[2]), max(a[3], b[3])) for a, b in pairs]
        # The last point is the present: it stays at its place.
        points = merged + points[len(merged) * 2 :]
    return points


def _drawing(curve: CurveData, points: list[Point]) -> str:
    label = html.escape(f"{plain(curve.name)}: last {quantities.number(curve.last)}", quote=True)
    start = (
        f'<svg class="nbp-svg" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{label}">'
    )
    if not points:
        return f"{start}</svg>"
    left, right = _range(point[0] for point in points)
    low, high = _range(value for point in points for value in point[2:])
    place = _Place(left, right, low, high)
    if len(points) == 1:
        x, y = place.of(points[0][0], points[0][1])
        return f'{start}<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="currentColor"/></svg>'
    line = " ".join("{:.1f},{:.1f}".format(*place.of(step, mean)) for step, mean, _, _ in points)
    band = ""
    if any(least < greatest for _, _, least, greatest in points):
        upper = ["{:.1f},{:.1f}".format(*place.of(step, most)) for step, _, _, most in points]
        lower = ["{:.1f},{:.1f}".format(*place.of(step, least)) for step, _, least, _ in reversed(points)]
        corners = " ".join(upper + lower)
        band = f'<polygon points="{corners}" fill="currentColor" fill-opacity="0.18"/>'
    return (
        f'{start}{band}<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.6" '
        'stroke-linejoin="round" vector-effect="non-scaling-stroke"/></svg>'
    )


def _foot(curve: CurveData, points: list[Point]) -> str:
    parts = []
    if points:
        low, high = min(p[2] for p in points), max(p[3] for p in points)
        span = (
            quantities.number(low)
            if low == high
            else f"{quantities.number(low)} to {quantities.number(high)}"
        )
        parts += [span, f"step {quantities.number(curve.last_step)}"]
    if curve.strange:
        parts.append(f"{curve.strange} not finite")
    return f'<div class="nbp-foot">{html.escape(", ".join(parts))}</div>'


class _Place:
    """From values to units of the drawing."""

    def __init__(self, left: float, right: float, low: float, high: float) -> None:
        self._left, self._low = left, low
        self._x = (WIDTH - 2 * _MARGIN) / (right - left)
        self._y = (HEIGHT - 2 * _MARGIN) / (high - low)

    def of(self, step: float, value: float) -> tuple[float, float]:
        x = _MARGIN + (step - self._left) * self._x
        y = HEIGHT - _MARGIN - (value - self._low) * self._y
        return x, y


def _range(values: Iterable[float]) -> tuple[float, float]:
    """Least and greatest, never the same."""
    known = list(values)
    low, high = min(known), max(known)
    if high - low > 1 / _BEYOND:
        return low, high
    half = max(abs(low), 1.0) / 2
    return low - half, high + half
