"""How large a capture is, and which variables make it so.

A function takes along what it uses of the notebook. That is one copy in memory however many workers
there are, but a large one that nobody meant to send deserves a line.
"""

from __future__ import annotations

import os
import pickle
import types
from collections.abc import Iterator
from typing import Any

from nbaccel.config import LaunchSpec
from nbaccel.launch import notices, quantities
from nbaccel.launch.payload import memory, unpicklable
from nbaccel.launch.payload.payload import Payload
from nbaccel.launch.payload.pickling import CallPickler

LIMIT_NAME = "NBACCEL_CAPTURE_WARN_MB"
"""Environment name: from how many MiB on a capture is mentioned; 0 never mentions one."""

_NAMED = 3
_SMALLEST_SHARE = 0.05

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def warn_if_large(call: Call, packed: Payload, spec: LaunchSpec) -> None:
    """One line with the largest variables, when ``packed`` is larger than the limit.

    Raises:
        ValueError: the environment's limit isn't a number.
    """
    limit = limit_bytes(spec)
    total = packed.contents.written
    if not limit or total <= limit:
        return
    sizes = sorted(variable_sizes(call).items(), key=lambda pair: -pair[1])
    large = [
        f"{name} {quantities.size(size)}" for name, size in sizes[:_NAMED] if size >= total * _SMALLEST_SHARE
    ]
    which = f"; largest: {', '.join(large)}" if large else ""
    notices.warn(
        f"{quantities.size(total)} go to the workers with the function{which}. They share one copy; "
        f"set {LIMIT_NAME} to be told later or never (0)"
    )


def limit_bytes(spec: LaunchSpec) -> int:
    """From how many bytes on a capture is mentioned; 0 for never.

    Raises:
        ValueError: the environment's value isn't a number.
    """
    text = os.environ.get(LIMIT_NAME, "")
    return memory.mebibytes(LIMIT_NAME, text) if text else int(spec.capture_warn_mb * (1 << 20))


def variable_sizes(call: Call) -> dict[str, int]:
    """Bytes of each variable that the call takes along, by name; what several share counts for each."""
    sizes: dict[str, int] = {}
    for label, value in _variables(call):
        sizes[label] = max(sizes.get(label, 0), _bytes_of(value))
    return sizes


def _variables(call: Call) -> Iterator[tuple[str, Any]]:
    function, args, kwargs = call
    yield from unpicklable.parts_of_call(function, args, kwargs)
    seen: set[int] = set()
    waiting = [function, *args, *kwargs.values()]
    while waiting:
        candidate = waiting.pop()
        if isinstance(candidate, types.MethodType):
            if id(candidate.__self__) not in seen:
                seen.add(id(candidate.__self__))
                yield "self", candidate.__self__
            candidate = candidate.__func__
        if not isinstance(candidate, types.FunctionType) or id(candidate) in seen:
            continue
        seen.add(id(candidate))
        if not _goes_by_value(candidate):
            continue
        for label, value in unpicklable.parts_of_function(candidate):
            if isinstance(value, (types.FunctionType, types.MethodType)):
                waiting.append(value)
            elif not isinstance(value, types.ModuleType):
                yield label.partition(" ")[2] or label, value


def _goes_by_value(function: types.FunctionType) -> bool:
    from cloudpickle import cloudpickle

    return not cloudpickle._should_pickle_by_reference(function)  # noqa: SLF001


class _Counter:
    """A file that only counts."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.count += size
        return size


def _bytes_of(value: Any) -> int:
    counter = _Counter()
    buffers: list[pickle.PickleBuffer] = []
    pickler = CallPickler(counter, buffers.append)  # type: ignore[arg-type]
    try:
        pickler.dump(value)
    except Exception:  # noqa: BLE001  # alone it may be unpicklable (a global under another name)
        return 0
    for buffer in buffers:
        storage = pickler.tensors.storage_behind(buffer)
        if storage is not None:
            counter.count += storage.nbytes
        else:
            with buffer.raw() as raw:
                counter.count += raw.nbytes
    return counter.count
