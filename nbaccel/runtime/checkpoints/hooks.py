"""Functions to call before a checkpoint is written or read, and the handle to take one out again."""

from __future__ import annotations

from collections.abc import Callable


class RemovableHook:
    """Takes a hook out again."""

    def __init__(self, hooks: dict[int, Callable[..., None]], key: int) -> None:
        self._hooks = hooks
        self._key = key

    def remove(self) -> None:
        """The hook isn't called any more. A second call does nothing."""
        self._hooks.pop(self._key, None)


class Hooks:
    """Hooks in the order in which they were added."""

    def __init__(self) -> None:
        self._hooks: dict[int, Callable[..., None]] = {}
        self._next = 0

    def add(self, hook: Callable[..., None]) -> RemovableHook:
        """Add one at the end."""
        self._next += 1
        self._hooks[self._next] = hook
        return RemovableHook(self._hooks, self._next)

    def all(self) -> list[Callable[..., None]]:
        """All that are there now."""
        return list(self._hooks.values())
