"""Find the part of an object that can't be pickled, and say how one gets there.

Only runs after pickling has failed, so it may be slow, but it must never fail itself.
"""

from __future__ import annotations

import io
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

_MAX_DEPTH = 20
_MAX_CHILDREN = 1000


def find(obj: Any) -> str | None:
    """``train → global 'cfg' → .lock: cannot pickle '_thread.lock' object``, or None when nothing is found.

    Args:
        obj: what failed as a whole; a call tuple ``(function, args, kwargs)`` reads best.
    """
    reason = _failure(obj)
    if reason is None:
        return None
    path, reason = _descend(obj, reason, set(), 0)
    way = " → ".join(path)
    return f"{way}: {reason}" if way else reason


def _descend(obj: Any, reason: str, seen: set[int], depth: int) -> tuple[list[str], str]:
    seen.add(id(obj))
    if depth < _MAX_DEPTH:
        for label, child in _children(obj):
            if id(child) in seen:
                continue
            child_reason = _failure(child)
            if child_reason is not None:
                path, deepest = _descend(child, child_reason, seen, depth + 1)
                return [label, *path], deepest
    return [], reason


def _failure(obj: Any) -> str | None:
    try:
        cloudpickle.Pickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(obj)
    except Exception as error:  # noqa: BLE001
        return str(error) or type(error).__name__
    return None


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    for count, pair in enumerate(_all_children(obj)):
        if count >= _MAX_CHILDREN:
            return
        yield pair


def _all_children(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, types.FunctionType):
        yield from _of_function(obj)
    elif isinstance(obj, types.MethodType):
        yield "self", obj.__self__
        yield obj.__func__.__name__, obj.__func__
    elif isinstance(obj, dict):
        for key, value in obj.items():
            yield f"[{key!r}]", value
    elif isinstance(obj, (list, tuple, set, frozenset)):
        fields = getattr(obj, "_fields", None)
        for index, value in enumerate(obj):
            yield (f".{fields[index]}" if fields else _call_part(obj, index)), value
    elif isinstance(obj, type):
        for name, value in vars(obj).items():
            yield f".{name}", value
    else:
        for name, value in getattr(obj, "__dict__", {}).items():
            yield f".{name}", value
        for name in _slots(type(obj)):
            if hasattr(obj, name):
                yield f".{name}", getattr(obj, name)


def _call_part(container: Any, index: int) -> str:
    """Position in a container; the three parts of a call tuple by what they are."""
    is_call = isinstance(container, tuple) and len(container) == 3 and callable(container[0])
    if is_call and isinstance(container[1], tuple) and isinstance(container[2], dict):
        return (getattr(container[0], "__qualname__", repr(container[0])), "args", "kwargs")[index]
    return f"[{index}]"


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"closure {name!r}", cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in sorted(_global_names(code)):
        if name in function.__globals__:
            yield f"global {name!r}", function.__globals__[name]
    for index, value in enumerate(function.__defaults__ or ()):
        yield f"default {index}", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"default {name!r}", value
    for name, value in vars(function).items():
        yield f".{name}", value


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
