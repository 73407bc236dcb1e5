"""Sizes, durations and numbers as people read them."""

from __future__ import annotations

import math


def size(count: float | None) -> str:
    """Bytes: ``612 MB``, ``1.5 GB``; ``unknown`` for None."""
    if count is None:
        return "unknown"
    amount = float(count)
    for unit in ("B", "KB", "MB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GB"


def duration(seconds: float) -> str:
    """``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def brief(seconds: float) -> str:
    """As :func:`duration`, with tenths of a second below ten."""
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def number(value: float) -> str:
    """Four significant digits, without needless zeros: ``0.1234``, ``1.2e-05``, ``48210``."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def pace(per_second: float, unit: str) -> str:
    """``34 batches/s``, ``0.25 batches/s``, ``3.1 s/batch``: whichever says more."""
    if per_second < 0.5:
        one = {"batches": "batch", "steps": "step"}.get(unit, unit)
        return f"{1 / per_second:.1f} s/{one}"
    return f"{per_second:.0f} {unit}/s" if per_second >= 10 else f"{per_second:.1f} {unit}/s"
