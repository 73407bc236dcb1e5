"""What travels between kernel and worker: pickled objects, their large buffers beside them.

::

    memory file:  | header | pickle stream | pad | buffer 0 | pad | buffer 1 | ... | index |
                                             each buffer at a multiple of 64 bytes

The file has no name, so nothing can be left behind in a file system. The writer writes each byte
once; every reader maps the file privately: it can write to what it got, copies only the pages that
it writes, and nobody else sees that. Descriptors travel over :mod:`nbaccel.launch.transport.channel`;
where that can't be, the file has a name for as long as it takes (:mod:`nbaccel.launch.payload.named_files`).
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Self

from nbaccel.launch.payload import mapping, memory, named_files, pickling, tensors, unpicklable
from nbaccel.launch.transport.channel import Ticket

_HEADER = struct.Struct("!8sQQQ")  # magic, length of the pickle stream, offset of the index, its entries
_MAGIC = b"nbaccel2"
_ALIGNMENT = 64
_INDEX_ENTRY = struct.Struct("!QQ?")  # offset, length, read-only
_CHUNK = 64 << 20
"""Bytes a write: an interrupt is served between two of them."""

MakePickler = Callable[[IO[bytes], Callable[[pickle.PickleBuffer], Any]], pickling.Pickler]
"""A pickler for a file and a function that takes the buffers beside it."""


@dataclass(frozen=True)
class Contents:
    """What the writer of a payload knows of it."""

    modules: frozenset[str] = frozenset()
    """Modules that the reader will import."""
    classes: tuple[type, ...] = ()
    """Classes sent by value; they must live until their instances have come home."""
    written: int = 0
    """Bytes written."""


class Payload:
    """A memory file with one pickled object. Owns its descriptor; a context manager."""

    def __init__(
        self,
        fd: int,
        contents: Contents | None = None,
        file: memory.MemoryFile | None = None,
        *,
        is_kept_warm: bool = True,
    ) -> None:
        self.fd = fd
        """The descriptor to send; -1 after :meth:`close`."""
        self.contents = contents or Contents()
        self._file = file
        self._is_kept_warm = is_kept_warm

    @classmethod
    def from_fd(cls, fd: int) -> Payload:
        """Take over a descriptor that arrived from another process."""
        return cls(fd)

    @classmethod
    def from_ticket(cls, ticket: Ticket, *, given: bool) -> Payload:
        """What arrived beside a message.

        Args:
            ticket: a descriptor, which is ours now, or a name.
            given: the file that has this name is ours from now on.

        Raises:
            OSError: there is no such file any more.
        """
        if isinstance(ticket, int):
            return cls(ticket)
        return cls(named_files.open_given(ticket) if given else named_files.open_lent(ticket))

    def lend(self) -> Ticket:
        """What goes beside a message whose receiver may read it while we hold it."""
        path = None if self._file is None else self._file.path
        return self.fd if path is None else path

    def give(self) -> Ticket:
        """What goes beside a message whose receiver owns it from now on; it is still ours to close."""
        ticket = self.lend()
        if self._file is not None:
            self._file.path = None
        return ticket

    @property
    def modules(self) -> frozenset[str]:
        """Modules that the reader imports, known to the writer only."""
        return self.contents.modules

    def load(self) -> Any:
        """Rebuild the object. Buffers are mapped, not read: they cost memory only where written.

        Raises:
            Exception: whatever an object's own rebuilding raises.
        """
        header = bytearray(_HEADER.size)
        if mapping.read_into(self.fd, memoryview(header)) < _HEADER.size or not header.startswith(_MAGIC):
            raise ValueError(f"not a payload: it starts with {bytes(header)!r}")
        _, stream_length, index_offset, count = _HEADER.unpack(header)
        # The file may be longer: a warm one keeps the memory of what it held before.
        length = index_offset + count * _INDEX_ENTRY.size
        view = mapping.privately(self.fd, length)
        buffers = []
        for start, size, readonly in _INDEX_ENTRY.iter_unpack(view[index_offset:]):
            piece = view[start : start + size]
            buffers.append(piece.toreadonly() if readonly else piece)
        try:
            return pickle.loads(view[_HEADER.size : _HEADER.size + stream_length], buffers=buffers)
        finally:
            tensors.settle()

    def close(self) -> None:
        """Close the descriptor; what was loaded stays valid."""
        if self.fd < 0:
            return
        if self._file is None:
            os.close(self.fd)
        elif self._is_kept_warm:
            memory.release(self._file)
        else:
            self._file.close()
        self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def dump_call(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> Payload:
    """Pack ``(function, args, kwargs)`` with everything they use, for workers.

    Raises:
        TypeError: something in it can't be pickled; the message names it and the way to it.
        OSError: there is no room for it.
    """
    return dump_by(call, pickling.CallPickler)


def dump_by(call: tuple[Any, tuple[Any, ...], dict[str, Any]], make_pickler: MakePickler) -> Payload:
    """As :func:`dump_call`, by other rules.

    Args:
        call: function, args and kwargs.
        make_pickler: the rules.
    """
    file = memory.acquire()
    try:
        contents = _write(file, call, make_pickler)
    except BaseException:
        file.close()
        raise
    return Payload(file.reader, contents, file)


def dump_result(value: Any, whose: str = "") -> Payload:
    """Pack a value for the way home: tensors on the CPU, kernel classes by reference.

    Args:
        value: what is to be sent.
        whose: how an error calls it, e.g. ``the value that rank 1 returned``.

    Raises:
        TypeError: something in it can't be pickled; the message names it and the way to it.
        OSError: there is no room for it.
    """
    file = memory.MemoryFile.create(lent=False)
    try:
        contents = _write(file, value, pickling.ResultPickler, whose)
    except BaseException:
        file.close()
        raise
    return Payload(file.reader, contents, file, is_kept_warm=False)


def _write(file: memory.MemoryFile, obj: Any, make_pickler: MakePickler, whose: str = "") -> Contents:
    with open(file.writer, "wb", buffering=1 << 20, closefd=False) as out:
        out.write(bytes(_HEADER.size))
        buffers: list[pickle.PickleBuffer] = []
        pickler = make_pickler(out, buffers.append)
        try:
            pickler.dump(obj)
        except Exception as error:
            found = unpicklable.explain(obj, error, make_pickler, whose)
            if found is None:
                raise  # the object is fine, the file isn't
            raise found from error
        stream_length = out.tell() - _HEADER.size
        index = [_write_buffer(out, buffer, pickler) for buffer in buffers]
        index_offset = out.tell()
        out.writelines(_INDEX_ENTRY.pack(*entry) for entry in index)
        file.used = out.tell()
        out.seek(0)
        out.write(_HEADER.pack(_MAGIC, stream_length, index_offset, len(index)))
    return Contents(frozenset(pickler.modules), tuple(pickler.classes), file.used)


def _write_buffer(
    out: IO[bytes], buffer: pickle.PickleBuffer, pickler: pickling.Pickler
) -> tuple[int, int, bool]:
    out.write(bytes(-out.tell() % _ALIGNMENT))
    offset = out.tell()
    storage = pickler.tensors.storage_behind(buffer)
    if storage is not None:
        out.write(storage.preamble())
        with storage.memory() as raw:
            _write_chunks(out, raw)
        return offset, out.tell() - offset, False
    with buffer.raw() as raw:
        _write_chunks(out, raw)
        return offset, raw.nbytes, raw.readonly


def _write_chunks(out: IO[bytes], raw: memoryview) -> None:
    for start in range(0, raw.nbytes, _CHUNK):
        out.write(raw[start : start + _CHUNK])
