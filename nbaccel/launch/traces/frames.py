"""Tracebacks that cross a process boundary.

A traceback can't be pickled. :func:`capture` takes what a reader of it needs, and :func:`rebuild`
makes a traceback of it whose frames have the file, function, line and columns of the worker's, so
that Python, IPython and debuggers show them, notebook cells included, as if they were local.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True)
class RemoteFrame:
    """One line of a traceback."""

    filename: str
    name: str
    qualname: str
    module: str
    first_line: int
    """Line of the ``def``."""
    line: int
    """Line that was running."""
    end_line: int
    column: int
    """Byte offset in the line, -1 when unknown."""
    end_column: int


def capture(tb: types.TracebackType | None) -> tuple[RemoteFrame, ...]:
    """The frames of a traceback, outermost first."""
    frames = []
    while tb is not None:
        code = tb.tb_frame.f_code
        start, end, column, end_column = next(
            islice(code.co_positions(), tb.tb_lasti // 2, None), (None, None, None, None)
        )
        known = start == tb.tb_lineno and end is not None and column is not None and end_column is not None
        frames.append(
            RemoteFrame(
                filename=code.co_filename,
                name=code.co_name,
                qualname=code.co_qualname,
                module=str(tb.tb_frame.f_globals.get("__name__", "")),
                first_line=code.co_firstlineno,
                line=tb.tb_lineno,
                end_line=end if known and end is not None else tb.tb_lineno,
                column=column if known and column is not None else -1,
                end_column=end_column if known and end_column is not None else -1,
            )
        )
        tb = tb.tb_next
    return tuple(frames)


def rebuild(frames: Sequence[RemoteFrame]) -> types.TracebackType | None:
    """A traceback with these frames, outermost first; None for no frames."""
    tb: types.TracebackType | None = None
    for remote in reversed(frames):
        # Where in the code is all the same: the whole of it stands at one place.
        tb = types.TracebackType(tb, _frame_like(remote), 0, remote.line)
    return tb


def _stub() -> Iterator[None]:
    # A generator, since the frame of one that never ran has no caller: that of a function would keep the
    # frames below it alive, and so all variables of those who wait for the launch.
    yield


_STUB = _stub.__code__


def _frame_like(remote: RemoteFrame) -> types.FrameType:
    code = _STUB.replace(
        co_filename=remote.filename,
        co_name=remote.name,
        co_qualname=remote.qualname,
        co_firstlineno=remote.first_line,
        co_linetable=_location_table(remote, len(_STUB.co_code) // 2),
    )
    namespace = {"__name__": remote.module, "__file__": remote.filename}
    frame = types.FunctionType(code, namespace)().gi_frame
    assert isinstance(frame, types.FrameType)
    return frame


def _location_table(remote: RemoteFrame, code_units: int) -> bytes:
    """A location table (PEP 626/657, format of Python 3.11 and later): all code at one place."""
    table = bytearray()
    line_delta = remote.line - remote.first_line
    while code_units > 0:
        length = min(code_units, 8)
        code_units -= length
        if remote.column < 0:
            table.append(0x80 | 13 << 3 | length - 1)
            table += _signed_varint(line_delta)
        else:
            table.append(0x80 | 14 << 3 | length - 1)
            table += _signed_varint(line_delta)
            table += _varint(remote.end_line - remote.line)
            table += _varint(remote.column + 1)
            table += _varint(remote.end_column + 1)
        line_delta = 0
    return bytes(table)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 64:
        out.append(0x40 | number & 0x3F)
        number >>= 6
    out.append(number)
    return bytes(out)


def _signed_varint(number: int) -> bytes:
    return _varint(-number << 1 | 1 if number < 0 else number << 1)
