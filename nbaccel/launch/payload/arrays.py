"""Numpy arrays in a payload, where numpy's own pickling would copy them into the stream.

numpy hands out the memory of plain contiguous arrays as buffers by itself. Here are the others:
strided views, subclasses, and maps of files, which are mapped again instead of being read.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any


def reduce_array(array: Any) -> Any:
    """Reduce an array; NotImplemented leaves it to numpy."""
    import numpy as np

    if array.dtype.hasobject:
        return NotImplemented
    if isinstance(array, np.memmap):
        reduced = _reduce_file_map(array, np)
        if reduced is not NotImplemented:
            return reduced
    if type(array) is np.ndarray:
        if array.flags.forc:
            return NotImplemented
        return _compact(array).__reduce_ex__(5)
    cls: Any = type(array)
    if cls.__reduce__ is np.ndarray.__reduce__ and cls.__reduce_ex__ is np.ndarray.__reduce_ex__:
        return _rebuild_subclass, (np.asarray(array), cls)
    return NotImplemented


def _compact(array: Any) -> Any:
    copy = array.copy(order="K")
    copy.flags.writeable = array.flags.writeable
    return copy


def _rebuild_subclass(array: Any, cls: type) -> Any:
    return array.view(cls)


def _reduce_file_map(array: Any, np: Any) -> Any:
    """The file and the place in it. A private map (mode ``c``) may differ from the file, and is copied."""
    if array.mode == "c" or array.filename is None or not isinstance(array._mmap, mmap.mmap):  # noqa: SLF001
        return NotImplemented
    path = Path(array.filename)
    if not path.exists() or array.size == 0 or any(stride < 0 for stride in array.strides):
        return NotImplemented
    # The map starts at a page boundary; a view keeps its parent's `offset`, so that doesn't tell.
    mapped = np.frombuffer(array._mmap, dtype=np.uint8)  # noqa: SLF001
    into = array.ctypes.data - mapped.ctypes.data
    reach = sum((size - 1) * step for size, step in zip(array.shape, array.strides, strict=True))
    length = reach + array.itemsize
    if not 0 <= into <= mapped.nbytes - length:
        return NotImplemented  # the result of a computation, which has memory of its own
    offset = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY + into
    mode = "r+" if array.flags.writeable else "r"
    return _map_file, (str(path), mode, offset, length, array.dtype, array.shape, array.strides)


def _map_file(
    path: str,
    mode: str,
    offset: int,
    length: int,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    import numpy as np

    flat = np.memmap(path, dtype=np.uint8, mode=mode, offset=offset, shape=(length,))  # type: ignore[call-overload]
    array: Any = np.ndarray.__new__(np.memmap, shape, dtype, buffer=flat, strides=strides)
    array.__array_finalize__(flat)  # takes on file name, mode and map
    return array
