"""What travels between kernel and worker: pickled objects, their large buffers beside them.

::

    memory file:  | header | pickle stream | pad | buffer 0 | pad | buffer 1 | ...
                                             each buffer at a multiple of 64 bytes

The file has no name, so nothing can be left behind in a file system. The writer writes each byte
once; every reader maps the file privately: it can write to what it got, copies only the pages that
it writes, and nobody else sees that. Descriptors travel over :mod:`nbaccel.launch.channel`.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from typing import IO, Any, Self

from nbaccel.launch import pickling

_HEADER = struct.Struct("!8sQQ")  # magic, length of the pickle stream, offset of the index
_MAGIC = b"nbaccel1"
_ALIGNMENT = 64
_INDEX_ENTRY = struct.Struct("!QQ?")  # offset, length, read-only


class Payload:
    """A memory file with one pickled object. Owns its descriptor; a context manager."""

    def __init__(self, fd: int, *, pickler: pickling.Pickler | None = None) -> None:
        self.fd = fd
        self._pickler = pickler

    @classmethod
    def from_fd(cls, fd: int) -> Payload:
        """Take over a descriptor that arrived from another process."""
        return cls(fd)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self.fd).st_size

    @property
    def modules(self) -> frozenset[str]:
        """Modules that the reader imports, known to the writer only."""
        return frozenset(self._pickler.modules) if self._pickler is not None else frozenset()

    def load(self) -> Any:
        """Rebuild the object. Buffers are mapped, not read: they cost memory only where written.

        Raises:
            Exception: whatever an object's own rebuilding raises.
        """
        mapped = mmap.mmap(self.fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        magic, stream_length, index_offset = _HEADER.unpack_from(mapped)
        if magic != _MAGIC:
            raise ValueError(f"not a payload: it starts with {magic!r}")
        view = memoryview(mapped)
        buffers = []
        for offset in range(index_offset, len(mapped), _INDEX_ENTRY.size):
            start, length, readonly = _INDEX_ENTRY.unpack_from(mapped, offset)
            piece = view[start : start + length]
            buffers.append(piece.toreadonly() if readonly else piece)
        return pickle.loads(view[_HEADER.size : _HEADER.size + stream_length], buffers=buffers)

    def close(self) -> None:
        """Close the descriptor; what was loaded stays valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def dump_call(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> Payload:
    """Pack ``(function, args, kwargs)`` with everything they use, for workers.

    Raises:
        TypeError: something in it can't be pickled; the message names it and the way to it.
    """
    return _dump(call, pickling.CallPickler)


def dump_result(value: Any) -> Payload:
    """Pack a value for the way home: tensors on the CPU, kernel classes by reference.

    Raises:
        TypeError: something in it can't be pickled; the message names it and the way to it.
    """
    return _dump(value, pickling.ResultPickler)


def _dump(obj: Any, pickler_class: type[pickling.Pickler]) -> Payload:
    fd = os.memfd_create("nbaccel-payload", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(bytes(_HEADER.size))
            buffers: list[pickle.PickleBuffer] = []
            pickler = pickler_class(file, buffers.append)
            try:
                pickler.dump(obj)
            except Exception as error:
                raise pickling.explain(obj, error) from error
            stream_length = file.tell() - _HEADER.size
            index = [_write_buffer(file, buffer) for buffer in buffers]
            index_offset = file.tell()
            file.writelines(_INDEX_ENTRY.pack(*entry) for entry in index)
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, stream_length, index_offset))
    except BaseException:
        os.close(fd)
        raise
    return Payload(fd, pickler=pickler)


def _write_buffer(file: IO[bytes], buffer: pickle.PickleBuffer) -> tuple[int, int, bool]:
    with buffer.raw() as raw:
        file.write(bytes(-file.tell() % _ALIGNMENT))
        offset = file.tell()
        file.write(raw)
        return offset, raw.nbytes, raw.readonly
