"""Single values that a caller passes: their type, their range, and how a message shows them."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence

_MAX_SHOWN = 60


def flag(name: str, value: object) -> bool:
    """True or False.

    Raises:
        TypeError: anything else; ``"false"`` would be true.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name}={shown(value)} is neither True nor False; write {name}=True or leave it out")
    return value


def whole_number(name: str, value: object, *, at_least: int) -> int:
    """``value`` as an int.

    Raises:
        TypeError: it isn't a whole number.
        ValueError: it is less than ``at_least``.
    """
    number = as_index(value)
    if number is None:
        raise TypeError(f"{name}={shown(value)} is not a whole number; write e.g. {name}={max(at_least, 2)}")
    if number < at_least:
        raise ValueError(f"{name}={number} is too small; it must be at least {at_least}")
    return number


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """``value``, which has to be one of ``choices``.

    Raises:
        TypeError: it isn't a text.
        ValueError: it is another one.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name}={shown(value)} is not a text; choose one of {', '.join(choices)}")
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known; choose one of {', '.join(choices)}")
    return value


def number(name: str, value: object, *, at_least: float) -> float:
    """``value`` as a number of seconds.

    Raises:
        TypeError: it isn't a number.
        ValueError: it is less than ``at_least``, or not a number at all (NaN).
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={shown(value)} is not a number; write seconds, e.g. {name}=10")
    seconds = float(value)
    if math.isnan(seconds) or seconds < at_least:
        raise ValueError(f"{name}={value!r} must be a number of seconds, at least {at_least:g}")
    return seconds


def as_index(value: object) -> int | None:
    """Whole numbers of any library; True and False aren't meant."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def shown(value: object) -> str:
    """A value for a message, which must stay one that can be read."""
    if hasattr(value, "shape"):  # arrays and tensors print pages
        return f"<{type(value).__name__} of shape {tuple(value.shape)}>"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 4]} ..."
