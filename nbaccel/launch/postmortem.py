"""What can still be asked about the last failed launch: ``nbaccel.last_failure()``.

The worker is gone by then, so it describes its frames before it leaves: source lines and the texts
of local variables, never the objects.
"""

from __future__ import annotations

import linecache
import reprlib
import time
import traceback
import types
from dataclasses import dataclass, field
from typing import Any

from nbaccel.launch.whereabouts import describe_place

_MAX_FRAMES = 50
_MAX_LOCALS = 60
_MAX_TEXT = 300
_TIME_LIMIT = 0.2
_CONTEXT = 2


@dataclass(frozen=True)
class FrameReport:
    """One frame of the failed rank, outermost first."""

    filename: str
    name: str
    """Name of the function."""
    line: int
    source: tuple[tuple[int, str], ...]
    """Lines around the one that ran: number and text."""
    locals: dict[str, str]
    """Local variables as texts of at most some hundred characters."""

    def __str__(self) -> str:
        lines = [f"{describe_place(self.filename, self.line)}, in {self.name}"]
        for number, text in self.source:
            lines.append(f"{'-->' if number == self.line else '   '} {number:4} {text}")
        lines += [f"        {name} = {text}" for name, text in self.locals.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class FailureReport:
    """The last launch that failed."""

    rank: int | None
    """Rank whose failure was raised."""
    exception: BaseException
    """What the launch raised, as an object of its own that keeps no variables of this process alive."""
    frames: tuple[FrameReport, ...] = ()
    """Frames of that rank, outermost first; empty when the process died without a word."""
    others: tuple[str, ...] = field(default=())
    """What became of the other ranks, a line for each story."""

    def __str__(self) -> str:
        who = "" if self.rank is None else f"rank {self.rank}: "
        head = f"{who}{type(self.exception).__name__}: {self.exception}"
        return "\n\n".join([head, *map(str, self.frames), *self.others])

    __repr__ = __str__


_last: FailureReport | None = None


def last_failure() -> FailureReport | None:
    """Rank, exception, and frames with source and local variables of the last failed launch.

    Returns:
        None when no launch of this process has failed yet.
    """
    return _last


def remember(report: FailureReport) -> None:
    """Keep a failure until the next one."""
    global _last
    _last = report


def describe_frames(tb: types.TracebackType | None) -> tuple[FrameReport, ...]:
    """The frames of a traceback with source and locals. Takes a fraction of a second at most."""
    deadline = time.monotonic() + _TIME_LIMIT
    return tuple(
        FrameReport(
            filename=frame.f_code.co_filename,
            name=frame.f_code.co_name,
            line=line,
            source=_source_around(frame.f_code.co_filename, line),
            locals=_describe_locals(frame.f_locals, deadline),
        )
        for frame, line in list(traceback.walk_tb(tb))[-_MAX_FRAMES:]
    )


def _source_around(filename: str, line: int) -> tuple[tuple[int, str], ...]:
    numbers = range(max(1, line - _CONTEXT), line + _CONTEXT + 1)
    lines = ((number, linecache.getline(filename, number).rstrip("\n")) for number in numbers)
    return tuple((number, text) for number, text in lines if text or number == line)


def _describe_locals(variables: dict[str, Any], deadline: float) -> dict[str, str]:
    texts = {}
    for name, value in list(variables.items())[:_MAX_LOCALS]:
        if name.startswith("__") or isinstance(value, types.ModuleType):
            continue
        texts[name] = _describer.describe(value) if time.monotonic() < deadline else "(not looked at)"
    return texts


class _Describer(reprlib.Repr):
    """``repr`` that stays short and never waits for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _MAX_TEXT
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 10

    def describe(self, value: object) -> str:
        try:
            text = self.repr(value)
        except Exception as error:  # noqa: BLE001  # a broken __repr__ is part of the picture
            return f"<{type(value).__name__}, whose repr() raised {type(error).__name__}>"
        return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 4] + " ..."

    def repr_instance(self, x: Any, level: int) -> str:
        # Values on a device may belong to an operation that will never end: its shape tells enough.
        shape, dtype, device = (getattr(x, name, None) for name in ("shape", "dtype", "device"))
        if shape is not None and dtype is not None:
            place = "" if device is None else f", {device}"
            return f"<{type(x).__name__} {tuple(shape)}, {dtype}{place}>"
        return super().repr_instance(x, level)

    def repr_Tensor(self, x: Any, level: int) -> str:  # noqa: N802  # looked up by type name
        if x.device.type == "cpu" and x.numel() <= 8:
            return repr(x)
        return self.repr_instance(x, level)

    repr_Parameter = repr_Tensor  # noqa: N815


_describer = _Describer()
