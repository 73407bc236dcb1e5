"""Whose code a frame runs: the user's, a library's, or this package's own. Knows file names only."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

_OURS = f"{Path(__file__).parents[2]}{os.sep}"
_LAUNCHER = f"{Path(__file__).parents[1]}{os.sep}"
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_LIBRARIES = tuple(
    sorted(
        {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")},
        key=len,
        reverse=True,
    )
)


class _Frame(Protocol):
    @property
    def filename(self) -> str: ...


_AnyFrame = TypeVar("_AnyFrame", bound=_Frame)


def is_ours(filename: str) -> bool:
    """Whether it is a file of this package."""
    return filename.startswith(_OURS)


def is_launcher(filename: str) -> bool:
    """Whether it is a file of what launches: what stands between the user's call and the user's function."""
    return filename.startswith(_LAUNCHER)


def is_library(filename: str) -> bool:
    """Whether it is a file of Python, of an installed package or of this one; a notebook's cell is none."""
    known = filename.startswith((_OURS, *_LIBRARIES, "<frozen "))
    return known or any(part in filename for part in _INSTALLED)


def name_in_library(filename: str) -> str:
    """A library's file as it is imported: ``torch/nn/modules/module.py``."""
    for part in _INSTALLED:
        _, found, name = filename.rpartition(part)
        if found:
            return name
    if is_ours(filename):
        return str(Path(filename).relative_to(Path(_OURS).parent))
    for start in _LIBRARIES:
        if filename.startswith(start):
            return filename.removeprefix(start)
    return filename


def without_ours(frames: Sequence[_AnyFrame]) -> tuple[_AnyFrame, ...]:
    """Leave out frames of this package that have called something else.

    What the user's own code, or a library, raised shows as if nothing had stood in between. Frames of
    this package at the end stay: it is they that raised.

    Args:
        frames: outermost first.
    """
    last = next((at for at in reversed(range(len(frames))) if not is_ours(frames[at].filename)), -1)
    return tuple(frame for at, frame in enumerate(frames) if at > last or not is_ours(frame.filename))
