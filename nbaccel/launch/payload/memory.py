"""Files in memory that payloads travel in, and the last one kept warm for the next launch.

::

    writer descriptor ──┐                       kept here, never sent
                        ├─ one file, no name
    reader descriptor ──┘  locked (shared)      sent to workers, who map it privately

The first write of a page costs several times as much as the next: the system has to find and clear
it. So the file of the last call is kept and written over. A private mapping still sees what is
written to pages that its owner hasn't touched, so that may only happen when no reader is left. The
system itself says so: the reader descriptor carries a ``flock`` that lives as long as any duplicate
or mapping of it, in whichever process, and the writer asks for the opposite lock.

A file that brings a result home is never kept: the kernel maps it for as long as the user likes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from typing import Self

from nbaccel.launch.payload import named_files
from nbaccel.launch.system import process

LIMIT_NAME = "NBACCEL_WARM_MEMORY_MB"
"""Environment name: how much memory may be kept between launches, in MiB; 0 keeps none."""

_DEFAULT_LIMIT = 2 << 30
_SHARE_OF_MEMORY = 10
_SMALLEST_WORTH = 4 << 20
_SMALL_USES = 8


class MemoryFile:
    """A file without a name. Whoever holds it owns its two descriptors.

    Where descriptors can't be passed it has one, by which others open it.
    """

    def __init__(self, writer: int, reader: int | None, path: str | None = None) -> None:
        self.writer = writer
        self.path = path
        """Its name, if it has one; None also when it is somebody else's to remove."""
        self.reader = os.dup(writer) if reader is None else reader
        self.can_tell_readers = reader is not None
        """False where the system opens no file twice: then it can't be written over."""
        self.used = 0
        """Bytes of the present content, told by the one who wrote it."""
        self._small_uses = 0

    @classmethod
    def create(cls, *, lent: bool = True) -> Self:
        """A new, empty one.

        Args:
            lent: if it has a name, others open it while we hold it; else one gets it for good.

        Raises:
            OSError: the system has no descriptor, or no place for a temporary file, left.
        """
        if process.is_portable():
            writer, path = named_files.create(lent=lent)
            return cls(writer, None, path)
        if sys.platform != "linux" or not hasattr(os, "memfd_create"):
            return cls(*_unlinked_file())
        writer = os.memfd_create("nbaccel-payload", os.MFD_CLOEXEC)
        try:
            return cls(writer, _open_again(writer))
        except BaseException:
            os.close(writer)
            raise

    def make_ready(self) -> bool:
        """Make it ready to be written over; False when somebody may still read it.

        A reader is a process that has the reader descriptor, or memory mapped through it.
        """
        if not self.can_tell_readers or self.reader >= 0:
            return False
        try:
            _try_exclusive_lock(self.writer)
        except OSError:
            return False
        reader = _open_again(self.writer)
        if reader is None:
            return False
        self.reader = reader
        os.lseek(self.writer, 0, os.SEEK_SET)
        return True

    @property
    def size(self) -> int:
        """Bytes of memory that it occupies, earlier content included."""
        return getattr(os.fstat(self.writer), "st_blocks", 0) * 512

    def trim(self) -> None:
        """Forget the memory beyond the present content when that has been small for some time."""
        self._small_uses = self._small_uses + 1 if self.used < self.size // 4 else 0
        if self._small_uses >= _SMALL_USES:
            os.ftruncate(self.writer, self.used)
            self._small_uses = 0

    def close_reader(self) -> None:
        """Give up the reader descriptor; mappings made through it stay."""
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1

    def close(self) -> None:
        """Give up both descriptors, and the name; mappings stay."""
        self.close_reader()
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1
        if self.path is not None:
            named_files.remove(self.path)
            self.path = None


def acquire() -> MemoryFile:
    """The warm file if there is one that nobody reads, else a new one."""
    kept = _take_kept()
    if kept is not None:
        if kept.make_ready():
            return kept
        kept.close()
    return MemoryFile.create()


def release(file: MemoryFile) -> None:
    """Take back a file from :func:`acquire`; it is kept warm when it is worth it and within the limit."""
    global _kept
    file.close_reader()
    file.trim()
    if not file.can_tell_readers or not _SMALLEST_WORTH <= file.size <= warm_limit():
        file.close()
        return
    with _lock:
        # Two launches at once: the larger file is the one worth keeping.
        smaller, _kept = sorted((file, _kept), key=_size_or_nothing)
    if smaller is not None:
        smaller.close()


def free_warm() -> None:
    """Give back the memory that is kept for the next launch."""
    kept = _take_kept()
    if kept is not None:
        kept.close()


def warm_limit() -> int:
    """Bytes that may be kept: ``NBACCEL_WARM_MEMORY_MB``, else 2 GiB but at most a tenth of the memory.

    Raises:
        ValueError: the environment's value isn't a number.
    """
    text = os.environ.get(LIMIT_NAME, "")
    if not text:
        return min(_DEFAULT_LIMIT, process.usable_memory() // _SHARE_OF_MEMORY)
    return mebibytes(LIMIT_NAME, text)


def mebibytes(name: str, text: str) -> int:
    """Bytes of an environment value in MiB.

    Raises:
        ValueError: it isn't a number, or a negative one.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{name}={text!r} must be a number of MiB, at least 0")
    return int(number * (1 << 20))


_kept: MemoryFile | None = None
_lock = threading.Lock()


def _size_or_nothing(file: MemoryFile | None) -> int:
    return -1 if file is None else file.size


def _take_kept() -> MemoryFile | None:
    global _kept
    with _lock:
        kept, _kept = _kept, None
    return kept


def _forget_in_child() -> None:
    """In a fork: the file is our parent's to write over; its lock would not tell us apart."""
    global _lock
    _lock = threading.Lock()  # another thread may have held it when we were forked
    free_warm()


process.at_fork(after_in_child=_forget_in_child)


def _open_again(writer: int) -> int | None:
    """A second descriptor with a lock of its own: duplicates would share one with the writer."""
    try:
        reader = os.open(f"/proc/self/fd/{writer}", os.O_RDWR)
    except FileNotFoundError:
        return None  # no /proc here
    return _locked(reader)


def _unlinked_file() -> tuple[int, int]:
    """Where memory files don't exist: a temporary file whose name is gone at once."""
    writer, name = tempfile.mkstemp(prefix="nbaccel-payload-")
    try:
        reader = os.open(name, os.O_RDWR)
        return writer, _locked(reader)
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.unlink(name)  # noqa: PTH108  # mkstemp gives a text


def _try_exclusive_lock(writer: int) -> None:
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(writer, fcntl.LOCK_UN)


def _locked(reader: int) -> int:
    try:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(reader, fcntl.LOCK_SH)
    except BaseException:
        os.close(reader)
        raise
    return reader
