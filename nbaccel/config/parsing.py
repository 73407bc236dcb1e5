"""From what stands in a file, a variable, a flag or a call to a setting's value.

Pure. Each function takes whatever a source can hold (texts from the environment, booleans and lists from
YAML, anything from Python) and raises :class:`BadValue` with the reason alone: the caller knows key and
place.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from nbaccel.config.spec import PROGRESS_MODES, check_mixed_precision, unknown_precision

Parser = Callable[[object], object]

IDLE = "idle"
"""``devices``: those with the least memory in use."""

ALL = "all"
"""``devices``: every visible one."""

_TRUE = frozenset({"1", "true", "yes", "on", "y"})
_FALSE = frozenset({"0", "false", "no", "off", "n"})


class BadValue(ValueError):
    """Why a value can't be; the text continues ``key=value``."""


def whole(at_least: int, at_most: int | None = None) -> Parser:
    """A parser of whole numbers in a range."""

    def parse(value: object) -> int:
        number = _index(value)
        if number is None:
            raise BadValue(f"is not a whole number; write e.g. {max(at_least, 2)}")
        if number < at_least:
            raise BadValue(f"is too small; it must be at least {at_least}")
        if at_most is not None and number > at_most:
            raise BadValue(f"is too large; it must be at most {at_most}")
        return number

    return parse


def choice(choices: Sequence[str]) -> Parser:
    """A parser of one of some words, any case accepted."""

    def parse(value: object) -> str:
        text = value.strip().lower() if isinstance(value, str) else value
        if text not in choices:
            raise BadValue(f"is not known; choose one of {', '.join(choices)}")
        return str(text)

    return parse


def flag(value: object) -> bool:
    """``true`` or ``false`` in the spellings of YAML and of shells."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise BadValue("is neither true nor false; write true or false")


def progress(value: object) -> str:
    """One of ``PROGRESS_MODES``; true and false in their spellings mean ``on`` and ``off``."""
    word = str(value).strip().lower()
    if word in PROGRESS_MODES:
        return word
    try:
        return "on" if flag(value) else "off"
    except BadValue:
        raise BadValue(f"is not known; choose one of {', '.join(PROGRESS_MODES)}") from None


def precision(value: object) -> str:
    """One of ``PRECISIONS``; ``no``, ``off`` and False mean ``no``."""
    try:
        return check_mixed_precision(value.strip() if isinstance(value, str) else value)
    except ValueError:
        raise BadValue(unknown_precision(value)) from None


def devices(value: object) -> tuple[int, ...] | str | None:
    """Numbers of devices, ``"idle"``, or None for all."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text == ALL:
            return None
        if text == IDLE:
            return IDLE
        parts: Sequence[object] = [part for part in text.strip("[]()").split(",") if part.strip()]
    elif isinstance(value, Sequence):
        parts = value
    else:
        parts = [value]
    numbers = [_index(part) for part in parts]
    found = tuple(number for number in numbers if number is not None)
    if not found or len(found) != len(numbers) or min(found) < 0:
        raise BadValue(f"names no devices; write numbers as 0,2, or {IDLE}, or {ALL}")
    if len(set(found)) < len(found):
        raise BadValue("names a device twice; each serves one process")
    return found


def seconds(value: object) -> float | None:
    """A positive number of seconds; None for no limit."""
    text = value.strip().lower() if isinstance(value, str) else value
    if text in {"none", "no", "off"} or text is False:
        return None
    try:
        number = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise BadValue("is not a number of seconds; write e.g. 600, or none for no limit") from None
    if isinstance(value, bool) or math.isnan(number) or number <= 0:
        raise BadValue("leaves no time; write a positive number of seconds, or none for no limit")
    return None if math.isinf(number) else number


def text(value: object) -> str:
    """Any text that isn't empty."""
    if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value).strip():
        return str(value).strip()
    raise BadValue("is not a text; write one, or leave the key out")


def _index(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        stripped = value.strip()
        return int(stripped) if stripped.lstrip("-").isdecimal() and stripped.isascii() else None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
