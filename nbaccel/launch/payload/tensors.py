"""Torch tensors in a payload: the memory of each storage goes out of band, once.

Views of one storage stay views of one storage, whatever holds them: plain tensors, Parameters,
buffers, subclasses, the inside of sparse, quantised and nested tensors. Of each storage only the
stretch that its tensors reach is sent, so ten rows of a large table cost ten rows.

Memory of an accelerator is copied to the CPU when it is written. In a worker it lands on the
worker's own device, on the way home it stays on the CPU.

Torch is never imported here unless a tensor is at hand.
"""

from __future__ import annotations

import ctypes
import pickle
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PREAMBLE = struct.Struct("!Q56x")
"""Before the memory of a storage: how many bytes of the storage were left out in front. As long as
the alignment of buffers, so that the memory itself is aligned too."""

_ALIGNMENT = 64


class StorageBuffer:
    """The memory of one storage while a payload is written; grows with each tensor that uses it."""

    def __init__(self, storage: Any, home: str) -> None:
        self._storage = storage
        self._home = home
        self._low: int | None = None
        self._high = 0
        self.placeholder = pickle.PickleBuffer(bytearray())
        """Stands in the stream; how much is to be written is known only when the stream has ended."""

    def use(self, low: int, high: int) -> None:
        """A tensor reaches the bytes from ``low`` up to ``high``."""
        if low >= high:
            return
        low -= low % _ALIGNMENT
        self._low = low if self._low is None else min(self._low, low)
        self._high = max(self._high, high)

    @property
    def nbytes(self) -> int:
        """Bytes that will be written, preamble aside."""
        return self._high - (self._low or 0)

    def preamble(self) -> bytes:
        """What precedes the memory."""
        return _PREAMBLE.pack(self._low or 0)

    @contextmanager
    def memory(self) -> Iterator[memoryview]:
        """The stretch in use, copied from the accelerator where it isn't the CPU's; valid while entered."""
        low = self._low or 0
        if self.nbytes == 0:
            yield memoryview(b"")
            return
        if self._storage.device.type == "cpu":
            address = self._storage.data_ptr() + low
        else:
            content = _bytes_of(self._storage)[low : self._high].cpu()
            address = content.data_ptr()
        raw = (ctypes.c_char * self.nbytes).from_address(address)
        yield memoryview(raw).cast("B")

    def __reduce__(self) -> Any:
        return _land, (self.placeholder, self._home)


class TensorReducers:
    """How one pickler reduces tensors and storages.

    Args:
        to_cpu: everything stays on the CPU at the reader's.
    """

    def __init__(self, *, to_cpu: bool) -> None:
        self._to_cpu = to_cpu
        self._buffers: dict[tuple[str, int], StorageBuffer] = {}
        self._by_placeholder: dict[int, StorageBuffer] = {}
        self._alive: list[Any] = []

    def storage_behind(self, buffer: pickle.PickleBuffer) -> StorageBuffer | None:
        """The storage that a buffer of the stream stands for, if it does."""
        return self._by_placeholder.get(id(buffer))

    def reduce_tensor(self, tensor: Any) -> Any:
        """Reduce a plain tensor; NotImplemented leaves it to torch, whose storages come back to us."""
        import torch

        if type(tensor) is not torch.Tensor or not _is_plain(tensor, torch):
            return NotImplemented
        try:
            storage = tensor.untyped_storage()
            buffer = self._buffer_of(storage)
        except (NotImplementedError, RuntimeError):
            # No storage that one could look at (XLA, a tensor inside a transformation).
            if tensor.device.type == "cpu":
                return NotImplemented
            home = self._home(tensor.device.type)
            return _tensor_to_device, (tensor.detach().cpu(), home, tensor.requires_grad)
        low, high = _reach(tensor)
        buffer.use(low * tensor.element_size(), high * tensor.element_size())
        args = (
            buffer,
            str(tensor.dtype).removeprefix("torch."),
            tensor.storage_offset(),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.requires_grad,
        )
        return _with_extras(_rebuild_tensor, args, tensor)

    def reduce_parameter(self, parameter: Any) -> Any:
        """Reduce a Parameter: its data, and what hangs on it."""
        import torch

        if type(parameter) is not torch.nn.Parameter or parameter.layout is not torch.strided:
            return NotImplemented
        args = (parameter.data, parameter.requires_grad)
        return _with_extras(_rebuild_parameter, args, parameter)

    def reduce_typed_storage(self, storage: Any) -> Any:
        """Reduce what torch's own reducers put their data in."""
        return _rebuild_typed_storage, (self._whole(storage._untyped_storage), storage.dtype)  # noqa: SLF001

    def reduce_untyped_storage(self, storage: Any) -> Any:
        """Reduce a storage that is sent as such."""
        return _rebuild_untyped_storage, (self._whole(storage),)

    def _whole(self, storage: Any) -> StorageBuffer:
        buffer = self._buffer_of(storage)
        buffer.use(0, storage.nbytes())
        return buffer

    def _buffer_of(self, storage: Any) -> StorageBuffer:
        # By address: torch.from_numpy() makes several storages of the same memory.
        key = (str(storage.device), storage.data_ptr() or id(storage))
        self._alive.append(storage)  # so that its memory can't be given to another one meanwhile
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = StorageBuffer(storage, self._home(storage.device.type))
            self._by_placeholder[id(buffer.placeholder)] = buffer
        return buffer

    def _home(self, device_type: str) -> str:
        """Device type on which the reader puts memory of ``device_type``."""
        return "cpu" if self._to_cpu else device_type


def _is_plain(tensor: Any, torch: Any) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.device.type != "meta"
    )


def _reach(tensor: Any) -> tuple[int, int]:
    """First element of the storage that the tensor uses, and the one after its last."""
    offset: int = tensor.storage_offset()
    if tensor.numel() == 0:
        return offset, offset
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return offset, offset + sum((size - 1) * stride for size, stride in steps) + 1


def _with_extras(rebuild: Any, args: tuple[Any, ...], tensor: Any) -> Any:
    """Attributes and gradient hooks, as state: they may lead back to the tensor."""
    hooks = tuple((tensor._backward_hooks or {}).values())  # noqa: SLF001
    late_hooks = tuple((getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values())
    if not (hooks or late_hooks or tensor.__dict__):
        return rebuild, args
    state = (dict(tensor.__dict__), hooks, late_hooks)
    return rebuild, args, state, None, None, _set_extras


def _bytes_of(storage: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


# --- the reader's side ------------------------------------------------------------------------


class _Landed:
    """A storage at the reader's, and how many bytes in front of it stayed behind."""

    def __init__(self, storage: Any, low: int) -> None:
        self.storage = storage
        self.low = low


def _land(buffer: Any, home: str) -> _Landed:
    import torch

    view = memoryview(buffer)
    (low,) = _PREAMBLE.unpack_from(view)
    memory = view[_PREAMBLE.size :]
    if not memory.nbytes:
        return _Landed(torch.empty(0, dtype=torch.uint8, device=_present(home)).untyped_storage(), low)
    content = torch.frombuffer(memory, dtype=torch.uint8)
    return _Landed(content.to(_present(home)).untyped_storage(), low)


def settle() -> None:
    """After a load: torch lists sparse tensors to be checked, and would keep their memory for good."""
    utils = sys.modules.get("torch._utils")
    validate = getattr(utils, "_validate_loaded_sparse_tensors", None)
    if validate is not None and getattr(utils, "_sparse_tensors_to_validate", None):
        validate()


def _present(device_type: str) -> str:
    """``device_type`` (its current device, which a worker has set to its own), or the CPU without one."""
    import torch

    if device_type == "cpu":
        return "cpu"
    module = getattr(torch, device_type, None)
    return device_type if module is not None and module.is_available() else "cpu"


def _rebuild_tensor(
    landed: _Landed,
    dtype_name: str,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    import torch

    dtype = getattr(torch, dtype_name)
    tensor = torch.empty(0, dtype=dtype, device=landed.storage.device)
    # An empty tensor may stand anywhere in its storage, also where nothing was sent.
    offset = offset - landed.low // dtype.itemsize if all(shape) else 0
    tensor.set_(landed.storage, offset, shape, stride)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor


def _rebuild_parameter(data: Any, requires_grad: bool) -> Any:
    import torch

    return torch.nn.Parameter(data, requires_grad)


def _rebuild_typed_storage(landed: _Landed, dtype: Any) -> Any:
    import torch

    storage: Any = torch.storage.TypedStorage
    return storage(wrap_storage=landed.storage, dtype=dtype, _internal=True)


def _rebuild_untyped_storage(landed: _Landed) -> Any:
    return landed.storage


def _set_extras(tensor: Any, state: tuple[dict[str, Any], tuple[Any, ...], tuple[Any, ...]]) -> None:
    attributes, hooks, late_hooks = state
    tensor.__dict__.update(attributes)
    for hook in hooks:
        tensor.register_hook(hook)
    for hook in late_hooks:
        tensor.register_post_accumulate_grad_hook(hook)


def _tensor_to_device(tensor: Any, device_type: str, requires_grad: bool) -> Any:
    tensor = tensor.to(_present(device_type))
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor
