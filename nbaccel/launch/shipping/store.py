"""In a worker: the objects that the kernel has sent, by key, so that it can refer to them later.

Functions and classes are kept until the kernel lets go of them. Models, tensors, arrays and other
objects are held weakly: what no name of the worker leads to any more is free, however long the kernel
keeps its own. The kernel therefore asks (:func:`pin`) before it refers to one.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable
from typing import Any

_kept: dict[int, Any] = {}
_watched: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_pinned: dict[int, Any] = {}
_received = 0


def resolve(key: int) -> Any:
    """The object that was sent under ``key``.

    Raises:
        LookupError: it isn't here (any more).
    """
    for table in (_kept, _pinned, _watched):
        if key in table:
            return table[key]
    raise LookupError(f"object {key} of the notebook is no longer on this worker; restart the workers")


def receive(number: int, objects: Iterable[tuple[int, Any]], forgotten: Iterable[int]) -> None:
    """Take note of a shipment.

    Args:
        number: of the shipment, counted by the kernel.
        objects: key and object of each that may be referred to later.
        forgotten: keys that nobody will refer to again.
    """
    global _received
    for key, obj in objects:
        if isinstance(obj, (types.FunctionType, type)):
            _kept[key] = obj
        else:
            _watched[key] = obj
    for key in forgotten:
        _kept.pop(key, None)
        _watched.pop(key, None)
    _pinned.clear()
    _received = number


def received() -> int:
    """Number of the last shipment that arrived."""
    return _received


def pin(keys: Iterable[int]) -> frozenset[int]:
    """Keep these objects until the next shipment; returns the keys of those that are gone."""
    gone = set()
    for key in keys:
        obj = _kept.get(key, _watched.get(key))
        if obj is None:
            gone.add(key)
        else:
            _pinned[key] = obj
    return frozenset(gone)
