"""Finding out what fits into memory, and giving memory back."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

import torch

from nbaccel.runtime.devices import detect_device

# What the back ends say when memory runs out, where it isn't torch.OutOfMemoryError.
_SIGNS = (
    "out of memory",
    "CUDNN_STATUS_NOT_SUPPORTED",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED",
)


def ran_out_of_memory(exception: BaseException) -> bool:
    """Whether ``exception`` says that memory ran out."""
    if isinstance(exception, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(exception).lower()
    return isinstance(exception, RuntimeError) and any(sign.lower() in text for sign in _SIGNS)


def release_memory(*objects: Any) -> list[Any]:
    """Drop references and give cached memory back; assign the result to the names that held them."""
    count = len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return [None] * count


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give the device's cached memory back to the system; first drop objects in reference cycles."""
    if garbage_collection:
        gc.collect()
    detect_device().empty_cache()


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[int], int] | None = None,
) -> Any:
    """Decorate ``function(batch_size, ...)`` to be called with smaller and smaller batches until one fits.

    Args:
        function: takes the batch size first; it is passed for the caller.
        starting_batch_size: the first to try.
        reduce_batch_size_fn: the next one after one that didn't fit; nine tenths of it by default.

    Raises:
        RuntimeError: not even a batch of one fits.
        TypeError: the batch size was passed by the caller.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    shrink = reduce_batch_size_fn or (lambda size: int(size * 0.9))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        names = list(inspect.signature(function).parameters)
        if len(args) > max(0, len(names) - 1) and "args" not in names:
            raise TypeError(
                f"{function.__name__} is called without its first argument, batch_size, which is filled in; "
                f"call it as {function.__name__}({', '.join(names[1:])})"
            )
        size = starting_batch_size
        while size > 0:
            clear_device_cache(garbage_collection=True)
            try:
                return function(size, *args, **kwargs)
            except Exception as error:
                if not ran_out_of_memory(error):
                    raise
                # The frames of the failed try hold its tensors.
                error.__traceback__ = None
                size = shrink(size)
        raise RuntimeError(
            "no executable batch size: it reached zero, so not even one sample fits into memory"
        )

    return call
