"""What only Windows is asked for: job objects, files that end with their last handle, socket handles.

The one place with such calls. Written from the documentation of the functions that it names; where it
isn't Windows only the layouts of the structures are there, which a test compares with the documented
sizes.
"""

from __future__ import annotations

import ctypes
import sys
from typing import ClassVar


class _BasicLimits(ctypes.Structure):
    """``JOBOBJECT_BASIC_LIMIT_INFORMATION``."""

    _fields_: ClassVar = [
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    ]


class _ExtendedLimits(ctypes.Structure):
    """``JOBOBJECT_EXTENDED_LIMIT_INFORMATION``."""

    _fields_: ClassVar = [
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    ]


EXIT_NAMES = {
    0xC0000005: "access violation",
    0xC0000017: "out of memory",
    0xC000001D: "illegal instruction",
    0xC00000FD: "stack overflow",
    0xC0000135: "a library was not found",
    0xC000013A: "ended by Ctrl-C",
    0xC0000142: "a library could not be initialised",
    0xC0000374: "heap corruption",
    0xC0000409: "abort, or stack corruption",
}
"""Exit codes that the system gives to processes that it ends."""


if sys.platform == "win32":
    import _winapi
    import msvcrt
    import os
    from collections.abc import Iterator

    _EXTENDED_LIMIT_INFORMATION = 9
    _KILL_ON_JOB_CLOSE = 0x2000
    _SHARE_ALL = 0x1 | 0x2 | 0x4  # FILE_SHARE_READ, _WRITE, _DELETE
    _DELETE = 0x00010000
    _CREATE_NEW = 1
    _OPEN_EXISTING = 3
    _TEMPORARY = 0x100  # FILE_ATTRIBUTE_TEMPORARY: kept in memory as far as there is room
    _DELETE_ON_CLOSE = 0x04000000
    _LAST_SOCKET_HANDLE = 1 << 16

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel32.CreateJobObjectW.restype = ctypes.c_void_p
    _kernel32.CreateJobObjectW.argtypes = [ctypes.c_void_p, ctypes.c_wchar_p]
    _kernel32.SetInformationJobObject.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_uint32,
    ]
    _kernel32.AssignProcessToJobObject.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    _kernel32.TerminateJobObject.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    _kernel32.CloseHandle.argtypes = [ctypes.c_void_p]

    class JobObject:
        """A process and all its descendants. They are ended when the last handle, ours, is closed.

        So none outlives this process, however it ends.
        """

        def __init__(self, process_handle: int) -> None:
            """Take in a process that has started no other one yet.

            Raises:
                OSError: the system refused.
            """
            self._handle = _kernel32.CreateJobObjectW(None, None)
            if not self._handle:
                raise ctypes.WinError(ctypes.get_last_error())
            limits = _ExtendedLimits()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
            if not _kernel32.SetInformationJobObject(
                self._handle, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            ) or not _kernel32.AssignProcessToJobObject(self._handle, process_handle):
                error = ctypes.WinError(ctypes.get_last_error())
                self.close()
                raise error

        def kill(self) -> None:
            """End all of them."""
            if self._handle:
                _kernel32.TerminateJobObject(self._handle, 1)

        def close(self) -> None:
            """End all of them, and give up the handle."""
            if self._handle:
                _kernel32.CloseHandle(self._handle)
                self._handle = None

    def create_file(path: str, *, ends_with_us: bool) -> int:
        """A new file that others may open while we hold it; its descriptor.

        Args:
            path: where.
            ends_with_us: it is deleted when we and all who opened it have closed it.
        """
        flags = _TEMPORARY | (_DELETE_ON_CLOSE if ends_with_us else 0)
        return _open(path, _winapi.GENERIC_READ | _winapi.GENERIC_WRITE, _CREATE_NEW, flags)

    def open_file(path: str, *, ends_with_us: bool) -> int:
        """Open such a file for reading; its descriptor.

        Args:
            path: where.
            ends_with_us: it is deleted when all who opened it have closed it.
        """
        return _open(path, _winapi.GENERIC_READ, _OPEN_EXISTING, _DELETE_ON_CLOSE if ends_with_us else 0)

    def _open(path: str, access: int, how: int, flags: int) -> int:
        if flags & _DELETE_ON_CLOSE:
            access |= _DELETE
        handle = _winapi.CreateFile(path, access, _SHARE_ALL, 0, how, flags, 0)
        mode = os.O_RDWR if access & _winapi.GENERIC_WRITE else os.O_RDONLY
        return msvcrt.open_osfhandle(handle, mode | os.O_BINARY | os.O_NOINHERIT)

    def socket_numbers() -> Iterator[int]:
        """Numbers that may be sockets of this process: handles are multiples of four, and small."""
        return iter(range(4, _LAST_SOCKET_HANDLE, 4))
