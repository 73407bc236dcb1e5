"""The source of notebook cells travels with their code.

In the worker a traceback then shows the line of the cell, and :func:`inspect.getsource` works, which
``torch.compile``, TorchScript and the like rest on. Code that the worker can read from a file is left
alone.
"""

from __future__ import annotations

import inspect
import linecache
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def of_cell(filename: str) -> str | None:
    """Source of a notebook cell: in :mod:`linecache`, but not a file that the worker can read."""
    entry = linecache.cache.get(filename)
    if entry is None or len(entry) != 4 or Path(filename).exists():
        return None
    return "".join(entry[2])


def remember(filename: str, source: str) -> None:
    """Put a cell's source where tracebacks and :mod:`inspect` look."""
    if filename not in linecache.cache and not Path(filename).exists():
        # No modification time: an entry that linecache.checkcache() must leave alone.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def teach_inspect() -> None:
    """Let :func:`inspect.getfile` find the cell of a class of ``__main__``; called in workers only.

    It looks at the module's one file, and a notebook has none: each class has its own cell, which its
    methods know.
    """
    if getattr(inspect.getfile, "_nbaccel", False):
        return
    original = inspect.getfile

    def getfile(object: Any) -> str:  # noqa: A002  # the name is inspect's
        if isinstance(object, type) and object.__module__ == "__main__":
            for code in _codes(object):
                if code.co_filename in linecache.cache:
                    return code.co_filename
        return original(object)

    getfile._nbaccel = True  # type: ignore[attr-defined]  # noqa: SLF001
    inspect.getfile = getfile


def _codes(cls: type) -> Iterator[types.CodeType]:
    """Code of the methods that stand in the body of the class."""
    for member in vars(cls).values():
        function = inspect.unwrap(member) if callable(member) else member
        if isinstance(function, property):
            function = function.fget
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType) and code.co_qualname.startswith(f"{cls.__qualname__}."):
            yield code
