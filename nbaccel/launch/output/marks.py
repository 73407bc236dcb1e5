"""Marks in a worker's two pipes, which keep what is in them in order.

A pipe tells nothing about the other one. So a worker puts marks among its text, and the kernel takes
them out again:

* ``TURN`` number n, in both pipes, wherever output changes from one stream to the other: what stands
  before it in either pipe was written before whatever stands behind it in the other.
* ``SHOW`` number n, in the pipe of standard output: here stands the display whose content travelled
  over the channel as :class:`~nbaccel.launch.transport.messages.Display` number n.

A mark starts with a secret of the launch, so no text of the user's can be taken for one. It is
written in one piece, small enough for the system to keep it whole among other processes' text.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

TURN = b"t"
SHOW = b"s"

_SECRET_SIZE = 16
_NUMBER_SIZE = 8
_SIZE = _SECRET_SIZE + 1 + _NUMBER_SIZE


@dataclass(frozen=True)
class Mark:
    """A mark as it was found."""

    kind: bytes
    """:data:`TURN` or :data:`SHOW`."""
    number: int


def new_secret() -> bytes:
    """What the marks of one launch start with: a NUL byte, and no other one behind it."""
    return b"\0" + secrets.token_hex(_SECRET_SIZE)[: _SECRET_SIZE - 1].encode()


def encode(secret: bytes, kind: bytes, number: int) -> bytes:
    """The bytes of a mark. Numbers start again after 2**32."""
    return secret + kind + b"%08x" % (number & 0xFFFFFFFF)


class MarkFinder:
    """Takes the marks out of one pipe's bytes, however the reads cut them."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes | Mark]:
        """What came, in order: pieces of text, and marks."""
        data = self._rest + data if self._rest else data
        found: list[bytes | Mark] = []
        start = 0
        while (at := data.find(self._secret, start)) >= 0 and at + _SIZE <= len(data):
            if at > start:
                found.append(data[start:at])
            number = data[at + _SECRET_SIZE + 1 : at + _SIZE]
            found.append(Mark(data[at + _SECRET_SIZE : at + _SECRET_SIZE + 1], int(number, 16)))
            start = at + _SIZE
        cut = at if at >= 0 else self._start_of_partial(data, start)
        if cut > start:
            found.append(data[start:cut])
        self._rest = data[cut:]
        return found

    def end(self) -> bytes:
        """No more will come: what was held back because it looked like the start of a mark."""
        rest, self._rest = self._rest, b""
        return rest

    def _start_of_partial(self, data: bytes, start: int) -> int:
        """Where the first part of a mark stands at the end of ``data``; its length if there is none."""
        at = data.rfind(b"\0", max(start, len(data) - _SECRET_SIZE + 1))
        return at if at >= 0 and self._secret.startswith(data[at:]) else len(data)
