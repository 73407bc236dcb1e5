"""What nbaccel itself says in a cell: one line each, marked as its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator

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
    sys.stdout.write(f"nbaccel: {text}\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """Say what went otherwise than one might expect, on standard error."""
    sys.stderr.write(f"nbaccel: {text}\n")
    sys.stderr.flush()


def warn_once(texts: Iterable[str]) -> None:
    """As :func:`warn`, but each text only the first time: a config file is read at every launch."""
    for text in texts:
        if text not in _said:
            _said.add(text)
            warn(text)
