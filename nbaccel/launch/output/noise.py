"""Text that libraries below torch write into every launch, and that tells its reader nothing."""

from __future__ import annotations

import re

_MARK = b"[Gloo] Rank "
# gloo of torch 2.8 and 2.9 says so of each group, on stdout. Other numbers of peers would be news.
_ALL_CONNECTED = re.compile(
    rb"^\[Gloo\] Rank \d+ is connected to (\d+) peer ranks\. "
    rb"Expected number of connected peer ranks is : \1\r?\n",
    re.MULTILINE,
)


def without_noise(data: bytes) -> bytes:
    """``data`` without such lines, as far as they lie in it whole."""
    return _ALL_CONNECTED.sub(b"", data) if _MARK in data else data


def is_noise(line: str) -> bool:
    """Whether this is such a line, without its end: they may come in pieces."""
    return line.startswith(_MARK.decode()) and _ALL_CONNECTED.match(line.encode() + b"\n") is not None
