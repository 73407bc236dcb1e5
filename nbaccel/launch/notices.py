"""What nbaccel itself says in a cell: one line each, marked as its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

_said: set[str] = set()
_announces = True


@contextlib.contextmanager
def unannounced() -> Iterator[None]:
    """Launches inside say nothing about themselves: the caller does."""
    global _announces
    before, _announces = _announces, False
    try:
        yield
    finally:
        _announces = before


def announce(text: str) -> None:
    """Say what is about to happen, on standard output."""
    if not _announces:
        return
    _say(sys.stdout, text)


def warn(text: str) -> None:
    """Say what went otherwise than one might expect, on standard error."""
    _say(sys.stderr, text)


def _say(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return  # a program without a console
    try:
        stream.write(f"nbaccel: {text}\n")
        stream.flush()
    except (OSError, ValueError):
        return  # closed by the user: what was to be said is no reason to fail


def warn_once(texts: Iterable[str]) -> None:
    """As :func:`warn`, but each text only the first time: a config file is read at every launch."""
    for text in texts:
        if text not in _said:
            _said.add(text)
            warn(text)
