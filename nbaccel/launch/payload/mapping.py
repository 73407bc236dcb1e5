"""A file's content as memory of this process's own: written to without anybody else seeing it.

Python's own ``mmap`` keeps a descriptor for as long as the mapping lives (until 3.13 there is no way
to do without), so a user who keeps a thousand results would run out of them. A mapping made here
keeps none.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import weakref
from typing import Any

from nbaccel.launch.system import process

_READ_UP_TO = 1 << 20
"""Bytes up to which reading costs less than mapping."""

_ALIGNMENT = 64
"""Of the memory, as of what is in the files: vector units like it."""


def privately(fd: int, length: int) -> memoryview:
    """The first ``length`` bytes of a file, writable, copied only where they are written.

    The memory lives as long as the view or any slice of it.

    Raises:
        OSError: there is no room for it.
        EOFError: the file is shorter.
    """
    if length <= _READ_UP_TO:
        return _read(fd, length)
    if sys.platform == "win32" or process.is_portable():
        return memoryview(mmap.mmap(fd, length, access=mmap.ACCESS_COPY))
    return _map(fd, length)


def _read(fd: int, length: int) -> memoryview:
    block = bytearray(length + _ALIGNMENT)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(block)) % _ALIGNMENT
    view = memoryview(block)[start : start + length]
    done = read_into(fd, view)
    if done < length:
        raise EOFError(f"the file ends after {done} of {length} bytes")
    return view


def read_into(fd: int, view: memoryview) -> int:
    """Read a file from its start, as much as there is room for; how many bytes that were."""
    done = 0
    if sys.platform == "win32" or process.is_portable():
        # Where a file is opened anew by each reader, its position is this reader's own.
        with open(fd, "rb", buffering=0, closefd=False) as file:
            file.seek(0)
            while done < len(view) and (count := file.readinto(view[done:])):
                done += count
        return done
    while done < len(view) and (count := os.preadv(fd, [view[done:]], done)):
        done += count
    return done


def _map(fd: int, length: int) -> memoryview:
    if sys.platform == "win32":
        raise NotImplementedError("Windows maps files in another way")
    libc = _libc()
    address = libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"{length} bytes could not be mapped: {os.strerror(code)}")
    block = (ctypes.c_char * length).from_address(address)
    finalizer = weakref.finalize(block, libc.munmap, address, length)
    finalizer.atexit = False  # whoever still uses it then must not lose it
    return memoryview(block).cast("B")


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc
