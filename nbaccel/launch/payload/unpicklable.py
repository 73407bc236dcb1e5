"""Find the part of an object that can't be pickled, and say how one gets there.

Only runs after pickling has failed, so it may be slow (within a budget), but it must never fail itself.
"""

from __future__ import annotations

import functools
import inspect
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from nbaccel.launch.payload.pickling import Pickler

_REMEDY = "return the rest without that part, e.g. plain values, tensors or a state_dict()"
_MAX_DEPTH = 20
_BUDGET = 5.0
"""Seconds after which no further part is tried."""


def explain(
    obj: Any, error: Exception, pickler_class: Callable[..., Pickler], whose: str = ""
) -> TypeError | None:
    """A TypeError that says what can't be pickled and where it was found.

    Args:
        obj: what failed as a whole; a call tuple ``(function, args, kwargs)`` reads best.
        error: how it failed.
        pickler_class: the rules that it failed under.
        whose: what the message calls it; without, that it can't be sent to another process.

    Returns:
        None when the object can be pickled: then the fault was elsewhere, a full disk perhaps.
    """
    search = _Search(pickler_class)
    found = search.find(obj)
    if found is None and isinstance(error, OSError):
        return None
    reason = f"{type(error).__name__}: {error}" if found is None else found
    if whose:
        return TypeError(f"{whose} can't be sent to the notebook: {reason}; {_REMEDY}")
    return TypeError(f"can't be sent to another process: {reason}")


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


class _Search:
    def __init__(self, pickler_class: Callable[..., Pickler]) -> None:
        self._pickler_class = pickler_class
        self._seen: set[int] = set()
        self._deadline = time.monotonic() + _BUDGET

    def find(self, obj: Any) -> str | None:
        """``train → global 'cfg' → .lock: cannot pickle '_thread.lock' object``, or None."""
        reason = self._failure(obj)
        if reason is None:
            return None
        path, reason = self._descend(obj, reason, 0)
        way = " → ".join(path)
        return f"{way}: {reason}" if way else reason

    def _descend(self, obj: Any, reason: str, depth: int) -> tuple[list[str], str]:
        self._seen.add(id(obj))
        if depth < _MAX_DEPTH:
            for label, child in _children(obj):
                if time.monotonic() > self._deadline:
                    break
                if id(child) in self._seen:
                    continue
                child_reason = self._failure(child)
                if child_reason is not None:
                    path, deepest = self._descend(child, child_reason, depth + 1)
                    return [label, *path], deepest
        return [], reason

    def _failure(self, obj: Any) -> str | None:
        try:
            self._pickler_class(_Nowhere(), lambda _: None).dump(obj)
        except Exception as error:  # noqa: BLE001
            return str(error) or type(error).__name__
        return None


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    """What pickling goes on to, labelled for a reader. An object's odd attribute must not end the search."""
    parts = _parts(obj)
    while True:
        try:
            yield next(parts)
        except StopIteration:
            return
        except Exception:  # noqa: BLE001  # a property, a `__len__`, an iterator of the user's
            return


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, types.FunctionType):
        yield from parts_of_function(obj)
    elif isinstance(obj, types.MethodType):
        yield "self", obj.__self__
        yield obj.__func__.__name__, obj.__func__
    elif isinstance(obj, functools.partial):
        yield "partial", obj.func
        yield from parts_of_call(obj.func, obj.args, obj.keywords)
    elif isinstance(obj, property):
        yield from (("getter", obj.fget), ("setter", obj.fset), ("deleter", obj.fdel))
    elif isinstance(obj, (classmethod, staticmethod)):
        yield obj.__func__.__name__, obj.__func__
    elif _is_call(obj):
        yield getattr(obj[0], "__qualname__", repr(obj[0])), obj[0]
        yield from parts_of_call(*obj)
    elif isinstance(obj, dict):
        for key, value in obj.items():
            yield f"[{key!r}]", value
        for key in obj:
            yield f"key {key!r}", key
    elif isinstance(obj, (list, tuple, set, frozenset, deque)):
        fields = getattr(obj, "_fields", None)
        for index, value in enumerate(obj):
            yield (f".{fields[index]}" if fields else f"[{index}]"), value
    elif isinstance(obj, type):
        for name, value in vars(obj).items():
            yield f".{name}", value
        for base in obj.__bases__:
            yield f"base class {base.__name__!r}", base
    else:
        yield from _parts_of_instance(obj)


def _parts_of_instance(obj: Any) -> Iterator[tuple[str, Any]]:
    for name, value in getattr(obj, "__dict__", {}).items():
        yield f".{name}", value
    for name in _slots(type(obj)):
        if hasattr(obj, name):
            yield f".{name}", getattr(obj, name)
    yield f"class {type(obj).__name__!r}", type(obj)
    reduced = obj.__reduce_ex__(5)
    if isinstance(reduced, tuple):
        for part in reduced[1:]:
            if isinstance(part, (tuple, dict)):
                yield "content", part


def _is_call(obj: Any) -> bool:
    return (
        type(obj) is tuple
        and len(obj) == 3
        and callable(obj[0])
        and isinstance(obj[1], tuple)
        and isinstance(obj[2], dict)
    )


def parts_of_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Arguments by the names of the parameters that take them."""
    try:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        # It takes no such arguments, or doesn't say what it takes.
        named: list[tuple[str, Any]] = [(f"args[{index}]", value) for index, value in enumerate(args)]
        yield from named + [(f"argument {name!r}", value) for name, value in kwargs.items()]
        return
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"argument '*{name}'[{index}]", item) for index, item in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from ((f"argument {key!r}", item) for key, item in value.items())
        else:
            yield f"argument {name!r}", value


def parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function that is sent by value takes along."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"closure {name!r}", cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in sorted(_global_names(code)):
        if name in function.__globals__:
            yield f"global {name!r}", function.__globals__[name]
    parameters = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    for name, value in zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True):
        yield f"default {name!r}", value
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
