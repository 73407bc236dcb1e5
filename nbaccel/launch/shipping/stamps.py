"""Whether a tensor or an array has changed: a stamp of it, cheap however large it is.

A tensor counts its in-place changes itself. What goes past that count (memory shared with numpy), and
numpy's arrays, are seen by their content: all of it up to :data:`FULL_CHECK` bytes, samples of it
beyond. A change of few elements of a very large array may therefore stay unseen.
"""

from __future__ import annotations

import ctypes
import zlib
from typing import Any

FULL_CHECK = 128 << 20
"""Bytes up to which all of the content is looked at: some 50 ms of work."""

_SAMPLES = 32
_SAMPLE_SIZE = 512


def of_tensor(tensor: Any, *, whole_up_to: int = FULL_CHECK) -> tuple[Any, ...]:
    """A stamp that differs when the tensor was changed or replaced."""
    try:
        version = tensor._version  # noqa: SLF001  # torch shows it under this name only
    except RuntimeError:
        version = None  # an inference tensor has none
    stamp = (
        type(tensor).__qualname__,
        str(tensor.dtype),
        str(tensor.device),
        tuple(tensor.shape),
        tensor.requires_grad,
        version,
        *sorted(getattr(tensor, "__dict__", ())),
    )
    if tensor.device.type != "cpu" or not _is_plain(tensor):
        return stamp
    address, count = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    if not count:
        return stamp
    content = memoryview((ctypes.c_char * count).from_address(address)).cast("B")
    return (*stamp, address, _checksum(content, whole_up_to))


def of_array(array: Any, *, whole_up_to: int = FULL_CHECK, by_place: bool = True) -> tuple[Any, ...]:
    """A stamp that differs when the array was changed or replaced, as far as samples show it.

    Args:
        array: of any layout.
        whole_up_to: bytes up to which every element counts.
        by_place: the same content elsewhere in memory is another array.
    """
    import numpy as np

    raw: Any
    stamp: tuple[Any, ...] = (
        type(array).__qualname__,
        array.dtype.str,
        array.shape,
        array.strides,
        array.flags.writeable,
    )
    if not array.nbytes:
        return stamp
    if by_place:
        stamp += (array.ctypes.data,)
    if array.flags.forc:
        flat = np.ndarray.ravel(array.view(np.ndarray), order="K")
        raw = flat.view(np.uint8)
        return (*stamp, _checksum(memoryview(raw), whole_up_to))
    step = max(1, array.size // (_SAMPLES * 16))
    some = np.ascontiguousarray(array.view(np.ndarray).flat[::step])
    raw = some.view(np.uint8)
    return (*stamp, zlib.crc32(raw))


def of_inside(value: Any) -> object:
    """For a model or an optimizer a stamp that differs after a change in place; None for anything else.

    By the counts that tensors keep of their changes, so that it costs next to nothing.
    """
    import torch

    if isinstance(value, torch.nn.Module):
        return tuple((id(part), _version(part)) for part in (*value.parameters(), *value.buffers()))
    if isinstance(value, torch.optim.Optimizer):
        return repr(
            [
                {key: [id(p) for p in entry] if key == "params" else entry for key, entry in group.items()}
                for group in value.param_groups
            ]
        )
    return None


def _version(tensor: Any) -> int | None:
    try:
        return int(tensor._version)  # noqa: SLF001  # torch shows it under this name only
    except RuntimeError:
        return None  # an inference tensor has none


def _is_plain(tensor: Any) -> bool:
    import torch

    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.is_contiguous()
        and isinstance(tensor, (torch.Tensor, torch.nn.Parameter))
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # noqa: SLF001
        and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )


def _checksum(content: memoryview, whole_up_to: int) -> int:
    size = content.nbytes
    if size <= whole_up_to:
        return zlib.crc32(content)
    stride = (size - _SAMPLE_SIZE) // (_SAMPLES - 1)
    value = 0
    for start in range(0, size - _SAMPLE_SIZE + 1, stride):
        value = zlib.crc32(content[start : start + _SAMPLE_SIZE], value)
    return value
