"""Values that each rank has for itself, where ranks may share a process.

A rank is a process nearly everywhere. On some accelerators several ranks are threads of one process, and
what would be a module's variable must then be the thread's. Which threads are ranks is
:mod:`nbaccel.runtime.environment`'s to know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from nbaccel.runtime.environment import thread_place

T = TypeVar("T")


class RankLocal(Generic[T]):
    """One value for each rank of this process, made by ``default`` when first asked for."""

    def __init__(self, default: Callable[[], T]) -> None:
        self._default = default
        self._of_process: list[T] = []
        self._of_thread = threading.local()

    def get(self) -> T:
        """The value of the rank that the calling thread belongs to."""
        own = self._own()
        if not own:
            own.append(self._default())
        return own[0]

    def set(self, value: T) -> None:
        """Replace it."""
        self._own()[:] = [value]

    def _own(self) -> list[T]:
        if thread_place() is None:
            return self._of_process
        if not hasattr(self._of_thread, "own"):
            self._of_thread.own = []
        found: list[T] = self._of_thread.own
        return found
