"""Nested batches: containers of tensors, walked and rebuilt without losing their type.

Lists, tuples, named tuples, dataclass instances and any mapping are containers. Everything else is
a leaf. Nothing here communicates.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch


def is_torch_tensor(tensor: object) -> bool:
    """Whether ``tensor`` is one."""
    return isinstance(tensor, torch.Tensor)


def is_namedtuple(data: object) -> bool:
    """Whether ``data`` is an instance of a :func:`collections.namedtuple` class."""
    return isinstance(data, tuple) and hasattr(data, "_fields") and hasattr(data, "_asdict")


def is_container(value: object) -> bool:
    """Whether :func:`map_structure` descends into ``value``."""
    return isinstance(value, (list, tuple, Mapping)) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def honor_type(obj: Any, generator: Iterable[Any]) -> Any:
    """A sequence of the type of ``obj`` that holds what ``generator`` yields."""
    if is_namedtuple(obj):
        return type(obj)(*generator)
    return type(obj)(generator)


def children(value: Any) -> list[tuple[str, Any]]:
    """Name and value of each direct member of a container."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if is_namedtuple(value):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of each leaf, in order."""
    if not is_container(value):
        yield path, value
        return
    for name, item in children(value):
        yield from leaves(item, path + name)


def map_structure(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``function`` to each leaf; containers come back as their own type."""
    kind = type(value)
    if kind is list:
        return [map_structure(function, item) for item in value]
    if kind is tuple:
        return tuple([map_structure(function, item) for item in value])
    if kind is dict:
        return {key: map_structure(function, item) for key, item in value.items()}
    if is_container(value):
        return map_members(lambda item: map_structure(function, item), value)
    return function(value)


def _rebuild_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    # A shallow copy keeps what a constructor call would lose (default_factory, extra attributes).
    if hasattr(value, "__setitem__"):
        rebuilt: Any = copy.copy(value)
        for key, item in items.items():
            rebuilt[key] = item
        return rebuilt
    return type(value)(items)  # type: ignore[call-arg]


def map_members(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``function`` to the direct members of a container, which comes back as its own type."""
    if isinstance(value, Mapping):
        return _rebuild_mapping(value, {key: function(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return honor_type(value, [function(item) for item in value])
    rebuilt = copy.copy(value)
    for field in dataclasses.fields(value):
        # Past __setattr__, so that frozen classes and fields without an init argument work as well.
        object.__setattr__(rebuilt, field.name, function(getattr(value, field.name)))
    return rebuilt


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """Apply ``func(leaf, *args, **kwargs)`` to each leaf that passes ``test_type``.

    Raises:
        TypeError: ``error_on_other_type`` and a leaf doesn't pass.
    """

    def apply(leaf: Any) -> Any:
        if test_type(leaf):
            return func(leaf, *args, **kwargs)
        if error_on_other_type:
            raise TypeError(
                f"{getattr(func, '__name__', func)} can't handle a value of type {type(leaf).__name__}; "
                "pass tensors, or containers (lists, tuples, mappings, dataclasses) of tensors"
            )
        return leaf

    return map_structure(apply, data)


def send_to_device(
    tensor: Any,
    device: torch.device | str | int,
    non_blocking: bool = False,
    skip_keys: str | list[str] | None = None,
) -> Any:
    """Move every tensor in ``tensor`` to ``device``; containers keep their type.

    Objects with a ``to`` method of their own are moved by it. Entries of the outermost mapping that
    ``skip_keys`` names stay where they are.
    """
    if isinstance(tensor, torch.Tensor):
        return tensor.to(device, non_blocking=non_blocking)
    if isinstance(tensor, Mapping) and skip_keys:
        skipped = {skip_keys} if isinstance(skip_keys, str) else set(skip_keys)
        return _rebuild_mapping(
            tensor,
            {
                key: item if key in skipped else send_to_device(item, device, non_blocking)
                for key, item in tensor.items()
            },
        )
    if hasattr(tensor, "to"):
        return _move_object(tensor, device, non_blocking)
    if not is_container(tensor):
        return tensor
    kind = type(tensor)
    if kind is list:
        return [send_to_device(item, device, non_blocking) for item in tensor]
    if kind is dict:
        return {key: send_to_device(item, device, non_blocking) for key, item in tensor.items()}
    return map_members(lambda item: send_to_device(item, device, non_blocking), tensor)


def _move_object(value: Any, device: torch.device | str | int, non_blocking: bool) -> Any:
    try:
        return value.to(device, non_blocking=non_blocking)
    except TypeError:
        # Many classes offer to(device) and nothing more.
        return value.to(device)


def to_float32(tensor: Any) -> Any:
    """fp16 and bf16 tensors in ``tensor`` as float32; everything else as it is."""
    if isinstance(tensor, torch.Tensor):
        return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    if not is_container(tensor):
        return tensor
    return map_structure(lambda leaf: to_float32(leaf) if isinstance(leaf, torch.Tensor) else leaf, tensor)


def find_batch_size(data: Any) -> int | None:
    """Length of the first dimension of the first tensor that has one; None when there is no such tensor."""
    for _, leaf in leaves(data):
        if isinstance(leaf, torch.Tensor) and leaf.ndim > 0:
            return int(leaf.shape[0])
    return None


def find_device(data: Any) -> torch.device | None:
    """Device of the first tensor in ``data``; None when there is no tensor."""
    for _, leaf in leaves(data):
        if isinstance(leaf, torch.Tensor):
            return leaf.device
    return None


def concatenate(data: list[Any] | tuple[Any, ...], dim: int = 0) -> Any:
    """Join several batches of one structure along ``dim``, leaf by leaf.

    Raises:
        TypeError: a leaf isn't a tensor.
    """
    first = data[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(data), dim=dim)
    if not is_container(first):
        raise TypeError(f"can only join tensors, or containers of tensors, not {type(first).__name__}")
    if isinstance(first, Mapping):
        joined = {key: concatenate([batch[key] for batch in data], dim) for key in first}
        return joined if type(first) is dict else _rebuild_mapping(first, joined)
    if isinstance(first, (list, tuple)):
        return honor_type(first, [concatenate([b[i] for b in data], dim) for i in range(len(first))])
    rebuilt = copy.copy(first)
    for field in dataclasses.fields(first):
        parts = [getattr(batch, field.name) for batch in data]
        object.__setattr__(rebuilt, field.name, concatenate(parts, dim))
    return rebuilt


def slice_tensors(
    data: Any,
    tensor_slice: slice,
    process_index: int | None = None,  # noqa: ARG001
    num_processes: int | None = None,  # noqa: ARG001
) -> Any:
    """``tensor[tensor_slice]`` for each tensor in ``data``. The last two arguments are unused."""
    return recursively_apply(lambda tensor: tensor[tensor_slice], data)


def listify(data: Any) -> Any:
    """Tensors as nested lists of numbers."""
    return recursively_apply(lambda tensor: tensor.tolist(), data)


@dataclasses.dataclass
class TensorInformation:
    """Shape and type of a tensor, without its content."""

    shape: torch.Size
    dtype: torch.dtype


def get_data_structure(data: Any) -> Any:
    """``data`` with :class:`TensorInformation` in place of each tensor."""
    return recursively_apply(lambda tensor: TensorInformation(tensor.shape, tensor.dtype), data)


def initialize_tensors(data_structure: Any) -> Any:
    """Empty tensors in place of each :class:`TensorInformation`."""
    if isinstance(data_structure, TensorInformation):
        return torch.empty(data_structure.shape, dtype=data_structure.dtype)
    if is_container(data_structure):
        return map_members(initialize_tensors, data_structure)
    return data_structure
