"""What can still be asked about the last failed launch: ``nbaccel.last_failure()``.

The worker is gone by then, so it describes its frames before it leaves: source lines and the texts
of local variables, never the objects.
"""

from __future__ import annotations

import linecache
import re
import reprlib
import time
import traceback
import types
from dataclasses import dataclass, field
from typing import Any

from nbaccel.launch.traces import postmortem_text
from nbaccel.launch.traces.frames import RemoteFrame, capture
from nbaccel.launch.traces.owners import is_library

_MAX_FRAMES = 50
_MAX_LOCALS = 60
_MAX_TEXT = 300
_TIME_LIMIT = 0.2
_CONTEXT = 2
_MAX_LINES = 20
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")
"""A name that isn't an attribute's."""

_OF_IPYTHON = re.compile(r"_(i+|i?\d+|ih|oh|dh|sh|exit_code)?")
"""Names that IPython sets besides ``In`` and ``Out``."""

_ROUTINES = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


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
    """Local variables as texts of at most some hundred characters: those of the line that ran first. Left
    out are modules, functions and classes that aren't in that line, and what IPython puts beside them."""
    named: tuple[str, ...] = ()
    """Names of variables that stand in the line that ran."""

    def __str__(self) -> str:
        return postmortem_text.whole(self)


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
        return "\n\n".join([head, *postmortem_text.blocks(self.frames), *self.others])

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
    places = list(zip(capture(tb), (frame for frame, _ in traceback.walk_tb(tb)), strict=True))[-_MAX_FRAMES:]
    told: dict[int, FrameReport] = {}
    # The user's innermost frames first: the time may not suffice for all.
    for at in sorted(range(len(places)), key=lambda at: (is_library(places[at][0].filename), -at)):
        told[at] = _describe(*places[at], deadline)
    return tuple(told[at] for at in range(len(places)))


def _describe(place: RemoteFrame, frame: types.FrameType, deadline: float) -> FrameReport:
    variables = dict(frame.f_locals)
    lines = range(place.line, min(place.end_line, place.line + _MAX_LINES) + 1)
    text = "".join(linecache.getline(place.filename, number) for number in lines)
    named = [name for name in dict.fromkeys(_NAME.findall(text)) if name in variables]
    texts = _describe_locals(variables, named, deadline)
    return FrameReport(
        filename=place.filename,
        name=place.name,
        line=place.line,
        source=_source_around(place.filename, place.line),
        locals=texts,
        named=tuple(name for name in named if name in texts),
    )


def _source_around(filename: str, line: int) -> tuple[tuple[int, str], ...]:
    numbers = range(max(1, line - _CONTEXT), line + _CONTEXT + 1)
    lines = ((number, linecache.getline(filename, number).rstrip("\n")) for number in numbers)
    return tuple((number, text) for number, text in lines if text or number == line)


def _describe_locals(variables: dict[str, Any], named: list[str], deadline: float) -> dict[str, str]:
    noise = {name for name, value in variables.items() if _is_noise(name, value, variables)}
    noise |= {name for name, value in variables.items() if name not in named and _is_code(value)}
    ordered = [name for name in dict.fromkeys((*named, *variables)) if name not in noise]
    return {
        name: _describer.describe(variables[name]) if time.monotonic() < deadline else "(not looked at)"
        for name in ordered[:_MAX_LOCALS]
    }


def _is_noise(name: str, value: object, variables: dict[str, Any]) -> bool:
    """A module, or something that Python or IPython keeps beside the user's names."""
    if name.startswith("__") or issubclass(type(value), types.ModuleType):
        return True
    if "_ih" not in variables:
        return False  # not the namespace of a notebook
    return (
        _OF_IPYTHON.fullmatch(name) is not None
        or (name in ("In", "Out") and value is variables.get("_ih" if name == "In" else "_oh"))
        or name in ("get_ipython", "exit", "quit")
        or (name == "open" and _is_code(value))
    )


def _is_code(value: object) -> bool:
    # By its type: asked for its class, an object may run code of its own, and raise.
    return issubclass(type(value), (*_ROUTINES, type))


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
