"""The frames of a failed rank as text that is read from top to bottom: the user's code and what it had.

Frames of libraries are a line each, but for the one that raised. Nothing is left out of the objects;
who wants more looks at ``last_failure().frames``. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nbaccel.launch.traces.owners import is_library, name_in_library, without_ours
from nbaccel.launch.traces.whereabouts import describe_place

if TYPE_CHECKING:
    from nbaccel.launch.traces.postmortem import FrameReport

MOST_OTHERS = 15
"""Variables of a frame that are shown besides those in the line that ran."""

WIDTH = 100
"""Characters of a value that are shown."""


def blocks(frames: Sequence[FrameReport]) -> list[str]:
    """A text for each frame, or for each few frames of libraries in a row.

    Args:
        frames: outermost first; the last one raised.
    """
    told: list[str] = []
    passed: list[str] = []
    shown = without_ours(frames)
    for frame in shown:
        raised = frame is shown[-1]
        if is_library(frame.filename) and not raised:
            passed.append(_place(frame))
            continue
        if passed:
            told.append("\n".join(passed))
            passed = []
        told.append(_brief(frame) if is_library(frame.filename) else whole(frame))
    return told


def whole(frame: FrameReport) -> str:
    """A frame with source and variables, those of the line that ran first."""
    lines = [_place(frame)]
    lines += [
        f"{'-->' if number == frame.line else '   '} {number:4} {text}" for number, text in frame.source
    ]
    others = [name for name in frame.locals if name not in frame.named]
    lines += _values(frame, [*frame.named, *others[:MOST_OTHERS]])
    if len(others) > MOST_OTHERS:
        lines.append(f"        and {len(others) - MOST_OTHERS} more variables in .frames[...].locals")
    return "\n".join(lines)


def _brief(frame: FrameReport) -> str:
    source = [f"--> {number:4} {text}" for number, text in frame.source if number == frame.line]
    return "\n".join([_place(frame), *source, *_values(frame, frame.named)])


def _place(frame: FrameReport) -> str:
    if is_library(frame.filename):
        return f"{name_in_library(frame.filename)}, line {frame.line}, in {frame.name}"
    return f"{describe_place(frame.filename, frame.line)}, in {frame.name}"


def _values(frame: FrameReport, names: Iterable[str]) -> list[str]:
    return [f"        {name} = {_one_line(frame.locals[name])}" for name in names if name in frame.locals]


def _one_line(text: str) -> str:
    line = re.sub(r"\s*\n\s*", " ", text)
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."
